"""An account without an environment, and the doctor's findings about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotmpi.environments.checks.check import Finding
from spotmpi.environments.doctor import doctor
from tests.cloud.scripted_account import Refusal, ScriptedAccount, SpotMarket

STACK = """config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a
  spotmpi:second_zone: us-east-1c
  spotmpi:groups:
    - {name: gpus, type: g5.xlarge, max: 8}
"""
TOOLS = {"pulumi": "v3.200.0\n", "aws": "aws-cli/2.31.4 Python/3.13.7\n", "kubectl": "Client Version: v1.35.4\n"}
FILE_SYSTEM = {"FileSystemId": "fs-1", "Tags": [{"Key": "spotmpi:environment", "Value": "spotmpi-mine"}]}


def stack(text: str = STACK) -> None:
    Path("stacks/Pulumi.mine.yaml").write_text(text)


def tool_output(command: Sequence[str]) -> str | None:
    return TOOLS[command[0]]


def finding_of(account: ScriptedAccount, check: str, tools: Any = tool_output) -> Finding:
    (one,) = [finding for finding in doctor("mine", account.aws, tools) if finding.check == check]
    return one


def without_environment(
    account: ScriptedAccount, market: SpotMarket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Script a healthy account in which nothing is built, with the stack `mine` in *folder*, made the current one."""
    market.script(account)

    def no_cluster(region: str, request: Mapping[str, Any]) -> Any:
        raise Refusal("ResourceNotFoundException", f"No cluster found for name: {request['name']}.")

    account.answers |= {
        "GetCallerIdentity": lambda region, request: {
            "Account": "123456789012",
            "Arn": "arn:aws:sts::123456789012:x/me",
        },
        "DescribeCluster": no_cluster,
        "DescribeFileSystems": lambda region, request: {"FileSystems": []},
        "DescribeMountTargets": lambda region, request: {"MountTargets": [{"MountTargetId": "fsmt-1"}]},
        "DescribeVpcs": lambda region, request: {"Vpcs": []},
        "DescribeNetworkInterfaces": lambda region, request: {"NetworkInterfaces": []},
        "DescribeVolumes": lambda region, request: {"Volumes": []},
        "DescribeRepositories": lambda region, request: {"repositories": []},
        "DescribeStacks": lambda region, request: {"Stacks": []},
        "DescribeLogGroups": lambda region, request: {"logGroups": []},
    }
    (folder / "stacks").mkdir()
    monkeypatch.setenv("SPOTMPI_STATE", str(folder / "state"))
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.chdir(folder)
    stack()
