"""An account without an environment, and the doctor's findings about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spotmpi.environments.checks.check import Finding
from spotmpi.environments.doctor import doctor
from tests.cloud.account.fake_account import FakeAccount

STACK = """config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a
  spotmpi:second_zone: us-east-1c
  spotmpi:groups:
    - {name: gpus, type: g5.xlarge, max: 8}
"""
TOOLS = {"pulumi": "v3.200.0\n", "aws": "aws-cli/2.31.4 Python/3.13.7\n", "kubectl": "Client Version: v1.35.4\n"}
TAGS = {"spotmpi:environment": "spotmpi-mine"}


def stack(text: str = STACK) -> None:
    Path("stacks/Pulumi.mine.yaml").write_text(text)


def tool_output(command: Sequence[str]) -> str | None:
    return TOOLS[command[0]]


def finding_of(account: FakeAccount, check: str, tools: Any = tool_output) -> Finding:
    (one,) = [finding for finding in doctor("mine", account, tools) if finding.check == check]
    return one


def without_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make *folder* the current one, with the stack `mine`."""
    (folder / "stacks").mkdir()
    monkeypatch.setenv("SPOTMPI_STATE", str(folder / "state"))
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.chdir(folder)
    stack()
