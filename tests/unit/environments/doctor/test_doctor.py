"""The doctor as a whole: it never falls ill itself, reports what it could not check, and its command prints all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.checks.check import Check, Finding, Subject
from spotmpi.environments.doctor import CHECKS, doctor, run_check
from spotmpi.environments.iam import LOOK
from spotmpi.environments.zones.comparison import compare_zones, request_quota
from spotmpi.images.build import Build
from tests.cloud.account.answers import SECRET
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.command_line import invoke
from tests.unit.environments.doctor.scenarios import (
    STACK,
    TAGS,
    HealthyEnvironment,
    finding_of,
    tool_output,
    write_stack,
)

ALLOWED_TO_ALL = {"sts:GetCallerIdentity"}


def test_in_a_healthy_environment_every_line_is_ok(healthy: HealthyEnvironment) -> None:
    findings = healthy.findings()
    assert {name: each.message for name, each in findings.items() if each.level != "ok"} == {}
    assert findings["node a"].message == "g4dn.xlarge in us-east-1a, 3.92 CPU, 15 GiB, 1 GPU, driver 580.95.05"
    assert findings["API"].message == "responds; 2 nodes"
    assert findings["scaling of g4dn"].message == "1 of 2 nodes"
    assert {"add-on coredns", "node group spotmpi-mine-g4dn-1234567", "mount target", "port 2049"} <= set(findings)
    assert "Kubernetes version" in findings and "node versions" not in findings
    assert findings["image chainermn"].message == f"tag {Build('chainermn').tag} is in the registry"
    (request,) = healthy.account.requests_of("DescribeImages")
    assert request["repositoryName"] == "spotmpi-lab/chainermn"
    assert healthy.account.rights - ALLOWED_TO_ALL <= set(LOOK)


def test_a_refused_read_is_a_warning_and_an_unreachable_cluster_an_error(healthy: HealthyEnvironment) -> None:
    healthy.cluster.forbid("*", "deployments")
    healthy.cluster.refuse("get", "secrets", 0)
    healthy.account.refuse("ListAddons", "AccessDeniedException")
    findings = healthy.findings()
    assert findings["controllers"].level == "warning" and 'User "ann"' in findings["controllers"].message
    assert findings["SSH key"].level == "error" and findings["add-ons"].level == "warning"
    assert findings["node a"].level == "ok"


def test_an_environment_that_cannot_be_opened_is_one_error_among_the_other_findings(
    healthy: HealthyEnvironment,
) -> None:
    healthy.failure = SpotmpiError("this machine's kubeconfig has no context of cluster spotmpi-mine")
    findings = healthy.findings()
    assert "no context of cluster spotmpi-mine" in findings["environment"].message
    assert findings["group g4dn"].level == "ok" and "API" not in findings


def test_an_environment_that_is_not_built_is_not_checked(healthy: HealthyEnvironment) -> None:
    healthy.account.refuse("DescribeCluster", "ResourceNotFoundException")
    healthy.failure = SpotmpiError("asked all the same")
    findings = healthy.findings()
    assert "environment" not in findings and "API" not in findings
    assert findings["credentials"].level == "ok"


@pytest.mark.parametrize(
    "operation",
    ["DescribeRegions", "DescribeAvailabilityZones", "DescribeInstanceTypes", "GetServiceQuota", "DescribeVolumes"],
)
def test_a_check_that_is_not_permitted_is_a_warning_and_the_rest_works(account: FakeAccount, operation: str) -> None:
    account.refuse(operation, "AccessDenied")
    findings = doctor("mine", account, tool_output)
    warned = [finding for finding in findings if finding.level != "ok"]
    assert warned and all(f"{operation} in us-east-1 is not permitted" in finding.message for finding in warned)
    assert len(warned) <= 2 and len(findings) >= 12


@pytest.mark.parametrize("answer", [None, {}, {"Volumes": [{}]}, {"Volumes": 3}])
def test_a_malformed_response_is_a_finding_and_not_a_crash(account: FakeAccount, answer: Any) -> None:
    account.answers["DescribeVolumes"] = lambda region, request: answer
    assert finding_of(account, "leftover volumes").level in ("ok", "warning")


def test_a_check_that_breaks_is_a_finding_without_secrets(account: FakeAccount) -> None:
    def find(subject: Subject) -> list[Finding]:
        raise RuntimeError(f"oh\nsecret_access_key={SECRET}")

    (finding,) = run_check(Check("mine", find), Subject(account, "us-east-1", None, tool_output))
    assert (finding.check, finding.level) == ("mine", "warning") and SECRET not in finding.message
    assert finding.message.startswith("could not be checked: RuntimeError: oh") and "\n" not in finding.message


def test_failures_of_every_check_are_still_a_list_of_findings(
    account: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://my-state")
    account.answers["GetCallerIdentity"] = account.sts.get_caller_identity
    monkeypatch.setattr(account, "handler", lambda service, operation: account.answers.get(operation, broken))
    block = "    - {name: block, type: g5.xlarge, max: 8, market: capacity-block, reservation: cr-0123abcd}\n"
    write_stack(STACK + block)
    findings = doctor("mine", account, broken)
    assert len(findings) == 1 + len(CHECKS) + 1 and findings[-1].check == "environment"
    assert {finding.level for finding in findings[1:]} == {"warning"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"region": "eu-west-1"}, "Pulumi's state has spotmpi-mine in eu-west-1, not in us-east-1: set aws:region"),
        ({"cluster_arn": "arn:aws:eks:us-east-1:999999999999:cluster/spotmpi-mine"}, "of account 999999999999: use a"),
    ],
    ids=["region", "account"],
)
def test_a_cluster_of_the_stacks_name_elsewhere_is_not_examined_as_the_stacks(
    account: FakeAccount, cluster: FakeCluster, values: dict[str, str], message: str
) -> None:
    healthy = HealthyEnvironment(account, cluster)
    healthy.environment = healthy.environment.model_copy(update=values)
    findings = healthy.findings()
    assert findings["environment"].level == "error" and message in findings["environment"].message
    assert "API" not in findings and not any(each.startswith("scaling of") for each in findings)


def test_a_stack_without_a_file_is_wrong_input(account: FakeAccount) -> None:
    with pytest.raises(InputError, match="stacks: mine"):
        doctor("ghost", account, tool_output)


@pytest.mark.parametrize(("quota", "code"), [(64.0, 0), (4.0, 0), (0.0, 1)])
def test_the_command_prints_lines_or_json_and_fails_on_errors_only(
    account: FakeAccount, monkeypatch: pytest.MonkeyPatch, quota: float, code: int
) -> None:
    account.quotas.values["L-3819A6DF"] = quota
    monkeypatch.setattr("spotmpi.environments.doctor.open_account", lambda region: account)
    monkeypatch.setattr("spotmpi.environments.doctor.run_tool", tool_output)

    status, output, _ = invoke("doctor", "mine")
    json_status, json_output, _ = invoke("doctor", "mine", "--json")

    assert status == json_status == code
    lines = output.splitlines()
    assert lines[0].split() == ["ok", "credentials", "account", "123456789012", "as", "arn:aws:sts::123456789012:x/me"]
    assert len(json.loads(json_output)) == len([line for line in lines if not line.startswith(" ")]) == 21
    assert (any("-> spotmpi zones --types g5.xlarge" in line for line in lines)) == (quota < 32)


def test_the_look_policy_allows_the_doctors_calls(account: FakeAccount) -> None:
    account.quotas.values["L-3819A6DF"] = 0.0
    account.efs.file_systems["fs-1"], account.efs.mount_targets["fsmt-1"] = TAGS, "fs-1"

    request_quota(compare_zones(["g5.xlarge"], 8, (), account, NOW).rows[0], account)
    doctor("mine", account, tool_output)
    account.refuse("GetServiceQuota", "NoSuchResourceException")
    account.script("GetAWSDefaultServiceQuota", Quota={"Value": 5.0})
    doctor("mine", account, tool_output)

    code, output, _ = invoke("doctor", "--iam", "look")
    (statement,) = json.loads(output)["Statement"]
    assert code == 0
    assert account.rights - ALLOWED_TO_ALL <= set(statement["Action"])
    assert invoke("doctor", "--iam", "all")[0] == 2


def test_no_credentials_are_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    finding = doctor(None, None, tool_output)[0]
    assert finding.level == "error" and "no usable AWS credentials" in finding.message
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "nobody" in doctor(None, None, tool_output)[0].message
