"""A lab account for tests of the CI scripts: its stack file."""

from __future__ import annotations

from infra.ci.stack_file import StackFile

ACCOUNT = "123456789012"
LAB = StackFile("lab", "us-east-1", ACCOUNT, "compute")
