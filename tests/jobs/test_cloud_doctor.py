"""`spotmpi doctor`: each check passing and failing, and a doctor that never falls ill itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.main import main
from jobs.cloud.checks.finding import Check, Finding, Subject
from jobs.cloud.doctor import CHECKS, doctor, examined, version_of
from jobs.cloud.zone_plan import request_quota, zone_plan
from jobs.errors import InputError
from tests.jobs.scripted_account import NOW, SECRET, Refusal, ScriptedAccount, World

STACK = """config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a
  spotmpi:groups:
    - {name: gpus, type: g5.xlarge, max: 8}
"""
TOOLS = {"pulumi": "v3.200.0\n", "aws": "aws-cli/2.31.4 Python/3.13.7\n", "kubectl": "Client Version: v1.35.4\n"}
FILE_SYSTEM = {"FileSystemId": "fs-1", "Tags": [{"Key": "spotmpi:environment", "Value": "spotmpi-mine"}]}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def account(one_account: ScriptedAccount, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An account in which all is well and nothing is built, and a folder with the stack `mine`."""
    world.script(one_account)

    def no_cluster(region: str, asked: Mapping[str, Any]) -> Any:
        raise Refusal("ResourceNotFoundException", f"No cluster found for name: {asked['name']}.")

    one_account.answers |= {
        "GetCallerIdentity": lambda region, asked: {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:x/me"},
        "DescribeCluster": no_cluster,
        "DescribeFileSystems": lambda region, asked: {"FileSystems": []},
        "DescribeMountTargets": lambda region, asked: {"MountTargets": [{"MountTargetId": "fsmt-1"}]},
        "DescribeVpcs": lambda region, asked: {"Vpcs": []},
        "DescribeNetworkInterfaces": lambda region, asked: {"NetworkInterfaces": []},
        "DescribeVolumes": lambda region, asked: {"Volumes": []},
        "DescribeRepositories": lambda region, asked: {"repositories": []},
        "ListStacks": lambda region, asked: {"StackSummaries": []},
        "DescribeLogGroups": lambda region, asked: {"logGroups": []},
    }
    (tmp_path / "stacks").mkdir()
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    stack()
    return one_account


def stack(text: str = STACK) -> None:
    Path("stacks/Pulumi.mine.yaml").write_text(text)


def tell(command: Sequence[str]) -> str | None:
    return TOOLS[command[0]]


def found(account: ScriptedAccount, check: str, told: Any = tell) -> Finding:
    (one,) = [finding for finding in doctor("mine", account.aws, told) if finding.check == check]
    return one


def test_where_all_is_well_every_line_is_ok(account: ScriptedAccount) -> None:
    findings = doctor("mine", account.aws, tell)

    assert [finding for finding in findings if finding.level != "ok"] == []
    assert [finding.check for finding in findings] == [
        *("credentials", "region", "zone", "pulumi", "aws", "kubectl", "group gpus", "quota of gpus"),
        *(
            f"leftover {what}"
            for what in (
                "CloudFormation stacks",
                "file systems",
                "mount targets",
                "network interfaces",
                "volumes",
                "log groups",
                "keys",
                "image repositories",
            )
        ),
    ]


def test_without_a_stack_only_account_and_tools_are_examined(account: ScriptedAccount) -> None:
    findings = doctor(None, account.aws, tell)

    assert [finding.check for finding in findings] == ["credentials", "region", "pulumi", "aws", "kubectl"]


def test_credentials_of_another_account_end_the_questions_to_it(account: ScriptedAccount) -> None:
    stack(STACK + "  spotmpi:account: '999999999999'\n")

    findings = doctor("mine", account.aws, tell)

    assert findings[0].level == "error" and "belongs to 999999999999" in findings[0].message
    assert [finding.check for finding in findings[1:]] == ["pulumi", "aws", "kubectl", "account"]


def test_the_root_user_is_warned_of(account: ScriptedAccount) -> None:
    account.answers["GetCallerIdentity"] = lambda region, asked: {"Account": "1", "Arn": "arn:aws:iam::1:root"}

    assert found(account, "credentials").level == "warning"


def test_expired_credentials_are_one_error_and_the_tools_are_still_examined(account: ScriptedAccount) -> None:
    account.refuse("GetCallerIdentity", "ExpiredToken")

    findings = doctor("mine", account.aws, tell)

    assert [finding.level for finding in findings] == ["error", "ok", "ok", "ok", "warning"]
    assert "have expired" in findings[0].message and "not checked without credentials" in findings[-1].message


@pytest.mark.parametrize(
    ("region", "told"), [("af-south-1", "is not enabled"), ("eu-nowhere-1", "there is no AWS region")]
)
def test_a_region_that_can_not_be_used_is_an_error(account: ScriptedAccount, region: str, told: str) -> None:
    stack(STACK.replace("us-east-1\n", f"{region}\n"))

    finding = found(account, "region")

    assert finding.level == "error" and told in finding.message and finding.remedy


def test_a_zone_of_another_region_names_those_there_are(account: ScriptedAccount) -> None:
    stack(STACK.replace("us-east-1a", "us-west-2a"))

    finding = found(account, "zone")

    assert finding.level == "error" and finding.remedy == "set spotmpi:zone to one of us-east-1a, us-east-1b"


def test_a_zone_without_one_zone_storage_is_an_error_where_the_stack_wants_it(account: ScriptedAccount) -> None:
    stack(STACK.replace("us-east-1a", "us-east-1b"))
    assert found(account, "zone").level == "error"

    stack(STACK.replace("us-east-1a", "us-east-1b") + "  spotmpi:storage: {one_zone: false}\n")
    assert found(account, "zone").level == "ok"


@pytest.mark.parametrize(
    ("name", "said", "level", "told"),
    [
        ("pulumi", None, "error", "is not on PATH"),
        ("pulumi", "v3.199.0", "error", "v3.199.0 is too old"),
        ("pulumi", "3.200.1-dev", "ok", "3.200.1"),
        ("aws", None, "error", "is not on PATH"),
        ("aws", "aws-cli/1.44.0 Python/3", "error", "1.44.0 is too old"),
        ("kubectl", None, "warning", "is not on PATH"),
        ("kubectl", "Client Version: v1.30.2", "warning", "v1.30.2 is too old"),
        ("kubectl", "", "warning", "does not tell its version"),
    ],
)
def test_each_tool_is_there_and_new_enough(
    account: ScriptedAccount, name: str, said: str | None, level: str, told: str
) -> None:
    finding = found(account, name, lambda command: said if command[0] == name else TOOLS[command[0]])

    assert (finding.level, told in finding.message) == (level, True)
    assert (finding.level == "ok") or finding.command.startswith("https://")


def test_versions_are_asked_of_real_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pulumi"
    program.write_text('#!/bin/sh\necho "v3.$#.7"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert version_of(("pulumi", "version")) == "v3.1.7\n"
    assert version_of(("no-such-program",)) is None


def test_a_type_that_the_zone_does_not_offer_is_an_error_with_the_way_out(
    account: ScriptedAccount, world: World
) -> None:
    world.not_offered.add(("g5.xlarge", "us-east-1a"))

    finding = found(account, "group gpus")

    assert (finding.level, finding.message) == ("error", "g5.xlarge is not offered in us-east-1a")
    assert finding.command == "spotmpi plan --types g5.xlarge --nodes 8 --write mine"


def test_a_type_that_does_not_exist_is_an_error(account: ScriptedAccount) -> None:
    stack(STACK.replace("g5.xlarge", "g99.xlarge"))

    assert "there is no type g99.xlarge" in found(account, "group gpus").message


def test_a_group_that_wants_a_placement_group_its_type_lacks_is_an_error(account: ScriptedAccount) -> None:
    stack(STACK.replace("g5.xlarge", "t3.xlarge"))
    assert "takes no cluster placement group" in found(account, "group gpus").message

    stack(STACK.replace("g5.xlarge, max: 8", "t3.xlarge, max: 8, placement_group: false"))
    assert found(account, "group gpus").level == "ok"


@pytest.mark.parametrize(
    ("quota", "running", "level", "told"),
    [
        (32.0, [], "ok", "leaves 32 vCPUs: 8 of 8"),
        (32.0, ["g4dn.xlarge"], "warning", "leaves 28 vCPUs: 7 of 8"),
        (3.0, [], "error", "leaves 3 vCPUs: 0 of 8"),
        (0.0, ["g4dn.xlarge"], "error", "leaves 0 vCPUs: 0 of 8"),
    ],
)
def test_the_quota_is_held_against_the_groups_max(
    account: ScriptedAccount, world: World, quota: float, running: list[str], level: str, told: str
) -> None:
    world.quota["L-3819A6DF"], world.running["us-east-1"] = quota, running

    finding = found(account, "quota of gpus")

    assert finding.level == level and told in finding.message
    assert ("--request-quota" in finding.command) == (level != "ok")


LEFT: dict[str, tuple[str, Any, str]] = {
    "file systems": ("DescribeFileSystems", {"FileSystems": [FILE_SYSTEM]}, "fs-1"),
    "mount targets": ("DescribeFileSystems", {"FileSystems": [FILE_SYSTEM]}, "fsmt-1"),
    "network interfaces": (
        "DescribeNetworkInterfaces",
        {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-1"}]},
        "eni-1",
    ),
    "volumes": ("DescribeVolumes", {"Volumes": [{"VolumeId": "vol-1"}]}, "vol-1"),
    "log groups": ("DescribeLogGroups", {"logGroups": [{"logGroupName": "/aws/eks/spotmpi-mine/cluster"}]}, "cluster"),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_a_former_environment_left_is_named_with_a_command(account: ScriptedAccount, what: str) -> None:
    operation, answer, shown = LEFT[what]
    account.answers[operation] = lambda region, asked: answer

    finding = found(account, f"leftover {what}")

    assert finding.level == "warning" and "1 of a former spotmpi-mine" in finding.message and shown in finding.message
    assert shown in finding.command and finding.command.endswith("--region us-east-1")


def test_what_belongs_to_others_is_no_leftover(account: ScriptedAccount) -> None:
    other = {"FileSystemId": "fs-2", "Tags": [{"Key": "spotmpi:environment", "Value": "spotmpi-mine-data"}]}
    account.answers["DescribeFileSystems"] = lambda region, asked: {"FileSystems": [other]}

    doctor("mine", account.aws, tell)
    assert found(account, "leftover file systems").level == "ok"

    filters = [asked["Filters"][0] for asked in account.calls("DescribeNetworkInterfaces")]
    assert all(each["Values"] == ["spotmpi-mine"] for each in filters)
    assert {each["Name"] for each in filters} >= {"tag:spotmpi:environment", "tag:cluster.k8s.amazonaws.com/name"}


def test_interfaces_that_the_cni_left_in_our_network_are_found_without_our_tag(account: ScriptedAccount) -> None:
    def interfaces(region: str, asked: Mapping[str, Any]) -> Any:
        filters = {each["Name"]: each["Values"] for each in asked["Filters"]}
        ours = filters == {"vpc-id": ["vpc-1"], "tag-key": ["node.k8s.amazonaws.com/instance_id"]}
        return {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-7"}] if ours else []}

    account.answers["DescribeNetworkInterfaces"] = interfaces
    assert found(account, "leftover network interfaces").level == "ok"

    account.answers["DescribeVpcs"] = lambda region, asked: {"Vpcs": [{"VpcId": "vpc-1"}]}
    assert "eni-7" in found(account, "leftover network interfaces").message


def test_a_built_environment_has_no_leftovers(account: ScriptedAccount) -> None:
    account.answers["DescribeFileSystems"] = lambda region, asked: {"FileSystems": [FILE_SYSTEM]}
    account.answers["DescribeCluster"] = lambda region, asked: {"cluster": {"name": asked["name"]}}

    finding = found(account, "leftover file systems")

    assert (finding.level, finding.message) == ("ok", "spotmpi-mine is built: what carries its tag is in use")


def test_kept_storage_is_no_leftover_of_its_own_stack(account: ScriptedAccount) -> None:
    stack("config:\n  aws:region: us-east-1\n  spotmpi:zone: us-east-1a\n  spotmpi:kind: data\n")

    assert not [finding for finding in doctor("mine", account.aws, tell) if finding.check.startswith("leftover")]


@pytest.mark.parametrize(
    "operation",
    ["DescribeRegions", "DescribeAvailabilityZones", "DescribeInstanceTypes", "GetServiceQuota", "DescribeVolumes"],
)
def test_a_check_that_is_not_permitted_is_a_warning_and_the_rest_works(
    account: ScriptedAccount, operation: str
) -> None:
    account.refuse(operation, "AccessDenied")

    findings = doctor("mine", account.aws, tell)

    warned = [finding for finding in findings if finding.level != "ok"]
    assert warned and all(f"{operation} in us-east-1 is not permitted" in finding.message for finding in warned)
    assert len(warned) <= 2 and len(findings) >= 12


@pytest.mark.parametrize("answer", [None, {}, {"Volumes": [{}]}, {"Volumes": 3}])
def test_an_answer_that_makes_no_sense_is_a_line_and_not_a_crash(account: ScriptedAccount, answer: Any) -> None:
    account.answers["DescribeVolumes"] = lambda region, asked: answer

    assert found(account, "leftover volumes").level in ("ok", "warning")


def test_a_check_that_breaks_is_a_finding_without_secrets(account: ScriptedAccount) -> None:
    def find(subject: Subject) -> list[Finding]:
        raise RuntimeError(f"oh\nsecret_access_key={SECRET}")

    (finding,) = examined(Check("mine", find), Subject(account.aws, "us-east-1", None, tell))

    assert (finding.check, finding.level) == ("mine", "warning") and SECRET not in finding.message
    assert finding.message.startswith("could not be checked: RuntimeError: oh") and "\n" not in finding.message


def test_everything_broken_at_once_is_still_a_list_of_findings(account: ScriptedAccount) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    for operation in set(account.answers) - {"GetCallerIdentity"}:
        account.answers[operation] = broken

    findings = doctor("mine", account.aws, broken)

    assert len(findings) == 1 + len(CHECKS) + 1 and findings[-1].check == "environment"
    assert {finding.level for finding in findings[1:]} == {"warning"}


def test_a_stack_without_a_file_is_wrong_input(account: ScriptedAccount) -> None:
    with pytest.raises(InputError, match="there are: mine"):
        doctor("ghost", account.aws, tell)


@pytest.mark.parametrize(("quota", "code"), [(64.0, 0), (4.0, 0), (0.0, 1)])
def test_the_command_prints_lines_or_json_and_fails_on_errors_only(
    account: ScriptedAccount,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quota: float,
    code: int,
) -> None:
    world.quota["L-3819A6DF"] = quota
    monkeypatch.setattr("jobs.cloud.doctor.open_account", lambda region: account.aws)
    monkeypatch.setattr("jobs.cloud.doctor.version_of", tell)

    outputs = []
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["spotmpi", "doctor", "mine", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == code
        outputs.append(capsys.readouterr())

    lines, listed = outputs[0].out.splitlines(), json.loads(outputs[1].out)
    assert lines[0].split() == ["ok", "credentials", "account", "123456789012", "as", "arn:aws:sts::123456789012:x/me"]
    assert len(listed) == 16 and len([line for line in lines if not line.startswith(" ")]) == 16
    assert (any("-> spotmpi plan --types g5.xlarge" in line for line in lines)) == (quota < 32)


def test_the_policy_to_look_allows_what_is_asked(
    account: ScriptedAccount, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.quota["L-3819A6DF"] = 0.0
    account.answers["DescribeFileSystems"] = lambda region, asked: {"FileSystems": [FILE_SYSTEM]}
    account.rights.clear()

    request_quota(zone_plan(["g5.xlarge"], 8, (), account.aws, NOW).rows[0], account.aws)
    doctor("mine", account.aws, tell)
    account.refuse("GetServiceQuota", "NoSuchResourceException")
    account.answers["GetAWSDefaultServiceQuota"] = lambda region, asked: {"Quota": {"Value": 5.0}}
    doctor("mine", account.aws, tell)

    monkeypatch.setattr(sys, "argv", ["spotmpi", "doctor", "--iam", "look"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (statement,) = json.loads(capsys.readouterr().out)["Statement"]
    unasked = {"sts:GetCallerIdentity"}  # AWS allows it to everybody
    assert account.rights - unasked <= set(statement["Action"])
    monkeypatch.setattr(sys, "argv", ["spotmpi", "doctor", "--iam", "all"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_no_credentials_are_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    findings = doctor(None, None, tell)

    assert findings[0].level == "error" and "no usable AWS credentials" in findings[0].message
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "nobody" in doctor(None, None, tell)[0].message
