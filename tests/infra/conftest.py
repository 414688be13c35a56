"""What the tests of the Pulumi program and of its CI scripts share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pulumi
import pytest
from moto import mock_aws
from pulumi.runtime.proto.source_pb2 import StackTrace

from infra.ci import commands
from tests.cloud.service_models import shared_models
from tests.infra.scripted_pulumi import ScriptedPulumi

ACCOUNT = "123456789012"
Ci = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session", autouse=True)
def service_models() -> Iterator[None]:
    """AWS's descriptions of its services, parsed once in this process."""
    with shared_models():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_stack_traces() -> Iterator[None]:
    """Resources without the lines that declare them, which take Pulumi a quarter of a run to find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulumi.runtime.resource, "_get_stack_trace", StackTrace)
        yield


@pytest.fixture(name="pulumi")
def scripted_pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedPulumi]:
    """A `pulumi` on PATH, and the variables and the account that the CI scripts need."""
    scripted = ScriptedPulumi(tmp_path)
    monkeypatch.setenv("PATH", f"{scripted.path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://example-state")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "known")
    monkeypatch.setenv("SPOTMPI_ACCOUNT", ACCOUNT)
    monkeypatch.delenv("SPOTMPI_ACCESS", raising=False)
    with mock_aws():
        yield scripted


@pytest.fixture
def lab_file(tmp_path: Path) -> Path:
    """The file of a stack that its team can reach, in a project that has a stack of persistent storage too."""
    stacks = tmp_path / "project" / "stacks"
    stacks.mkdir(parents=True)
    (stacks / "Pulumi.p3-data.yaml").write_text("config:\n  aws:region: us-east-1\n  spotmpi:kind: data\n")
    path = stacks / "Pulumi.lab.yaml"
    path.write_text("config:\n  aws:region: us-east-1\n  spotmpi:access: [198.51.100.7/32]\n")
    return path


@pytest.fixture
def ci(lab_file: Path, capfd: pytest.CaptureFixture[str]) -> Ci:
    """Runs one of the commands for a stack of a small project: exit code, stdout and stderr."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        code = commands.main(command, arguments, lab_file.parent.parent)
        return code, *capfd.readouterr()

    return run
