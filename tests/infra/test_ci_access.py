"""Who may reach the Kubernetes API while CI builds, and afterwards."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from tests.infra.ci_account import ACCOUNT
from tests.infra.conftest import Ci
from tests.infra.scripted_pulumi import ScriptedPulumi


def cluster(*cidrs: str) -> None:
    """Create stack lab's cluster in moto, whose public endpoint allows the CIDRs."""
    boto3.client("eks", region_name="us-east-1").create_cluster(
        name="spotmpi-lab",
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/control",
        resourcesVpcConfig={"endpointPublicAccess": True, "publicAccessCidrs": list(cidrs)},
    )


def test_up_appends_addresses_to_those_of_the_file(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24,198.51.100.7/32")
    pulumi.answers(*["0 done"] * 3)
    assert ci("up", "lab")[0] == 0
    assert pulumi.commands == [
        "stack select --create",
        "config set --path spotmpi:access[1] 203.0.113.0/24",
        "up --yes --policy-pack infra/guardrails",
    ]


@pytest.mark.parametrize(("build_answer", "status"), [("0 built", 0), ("7 quota", 7)])
def test_a_temporary_address_is_removed_however_the_build_ends(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, build_answer: str, status: int
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24")
    cluster("198.51.100.7/32", "203.0.113.0/24", "192.0.2.1/32")
    pulumi.answers(*["0 done"] * 3, build_answer, *["0 done"] * 2)
    code, _, errors = ci("up", "lab", "--access", "192.0.2.1/32")
    assert code == status
    assert pulumi.commands[1:] == [
        "config set --path spotmpi:access[1] 203.0.113.0/24",
        "config set --path spotmpi:access[2] 192.0.2.1/32",
        "up --yes --policy-pack infra/guardrails",
        "config rm --path spotmpi:access[2]",
        "up --yes --skip-preview --target **aws:eks/cluster:Cluster::**",
    ]
    assert "removing access to the Kubernetes API for 192.0.2.1/32" in errors


def test_a_build_without_a_cluster_has_no_access_to_remove(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", "0 set", "7 quota", "0 removed")
    assert ci("up", "lab", "--access", "192.0.2.1/32")[0] == 7
    assert pulumi.commands[-1] == "config rm --path spotmpi:access[1]"


def test_an_address_that_could_not_be_removed_is_reported_and_fails_the_command(pulumi: ScriptedPulumi, ci: Ci) -> None:
    cluster("198.51.100.7/32", "192.0.2.1/32")
    pulumi.answers("0 selected", "0 set", "0 built", "0 removed", "9 throttled")
    code, _, errors = ci("up", "lab", "--access", "192.0.2.1/32")
    assert code == 9 and "may still be open to 192.0.2.1/32: repeat the command" in errors


@pytest.mark.parametrize("command", ["preview", "up"])
def test_a_stack_without_access_is_refused_with_the_variable_to_set(
    pulumi: ScriptedPulumi, ci: Ci, project: Path, command: str
) -> None:
    (project / "stacks" / "Pulumi.lab.yaml").write_text("config:\n  aws:region: us-east-1\n")
    code, _, errors = ci(command, "lab")
    assert code == 1 and "set spotmpi:access in its file, or SPOTMPI_ACCESS" in errors
    assert pulumi.calls == []


def test_persistent_storage_needs_no_access(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", "0 built")
    assert ci("up", "p3-data")[0] == 0
