"""`spotmpi doctor` before anything is built: each check passing and failing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from infra.settings import Settings
from spotmpi.aws import state_bucket
from spotmpi.aws.zones import default_second_zone
from spotmpi.environments.checks.account import planned_version
from spotmpi.environments.checks.check import Finding, Subject
from spotmpi.environments.doctor import doctor, run_tool
from spotmpi.environments.iam import LOOK
from spotmpi.environments.stack_file import read_stack
from tests.cloud.account.ec2 import machine
from tests.cloud.account.eks import Eks
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import capacity_block
from tests.unit.environments.doctor.scenarios import STACK, TAGS, TOOLS, finding_of, tool_output, write_stack

PRICE = "EKS bills $0.60 an hour for the control plane in place of $0.10, or upgrades it by itself at any time"
TOOL_CHECKS = ("pulumi", "kubectl", "image builder")
LEFTOVERS = {
    "file systems": "fs-1",
    "mount targets": "fsmt-1",
    "network interfaces": "eni-1",
    "volumes": "vol-1",
    "log groups": "/aws/eks/spotmpi-mine/cluster",
}


def test_in_a_healthy_account_every_line_is_ok(account: FakeAccount) -> None:
    findings = doctor("mine", account, tool_output)
    kinds = ("CloudFormation stacks", *LEFTOVERS, "keys", "image repositories")
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert [finding.check for finding in findings] == [
        *("credentials", "region", "zone", "second zone", *TOOL_CHECKS, "Kubernetes version", "group gpus"),
        *("quota of gpus", "quota of system", "quota of VPCs", "quota of internet gateways"),
        *(f"leftover {kind}" for kind in kinds),
    ]


def version_finding(account: FakeAccount, version: str, today: date = date(2026, 11, 27)) -> Finding:
    """What is found on a day of a stack that is to be built with a version; EKS offers 1.33 to 1.36."""
    write_stack(STACK + f"  spotmpi:cluster: {{version: {version}}}\n" * bool(version))
    account.eks.offered = Eks().offered
    (finding,) = planned_version(Subject(account, "us-east-1", read_stack("mine"), tool_output), today)
    return finding


IN_SUPPORT = "set cluster.version to one in standard support: 1.35, 1.36"


@pytest.mark.parametrize(
    ("version", "level", "message"),
    [
        ("", "ok", "1.36, in standard support until 2027-08-02"),
        ("'1.35'", "ok", "1.35, in standard support until 2027-03-27"),
        (
            "1.34",
            "warning",
            "standard support of 1.34 ends on 2026-12-02, in 5 days: then EKS upgrades the control plane",
        ),
        ("'1.33'", "warning", f"standard support of 1.33 ended on 2026-07-29: {PRICE}"),
        ("'1.32'", "error", "EKS does not offer Kubernetes 1.32"),
        ("latest", "error", "EKS does not offer Kubernetes latest"),
    ],
)
def test_the_version_that_a_stack_would_be_built_with_is_offered_and_in_standard_support(
    account: FakeAccount, version: str, level: str, message: str
) -> None:
    finding = version_finding(account, version)
    assert (finding.level, finding.message) == (level, message)
    assert (finding.remedy, finding.command) == ("" if level == "ok" else IN_SUPPORT, "")


def test_a_built_environment_is_asked_for_its_own_version_alone(account: FakeAccount) -> None:
    account.eks.version = "1.35"
    write_stack(STACK + "  spotmpi:cluster: {version: '1.30'}\n")
    findings = doctor("mine", account, tool_output, open_live=None)  # as `up` asks
    assert not [each for each in findings if each.check == "Kubernetes version"]


def test_a_version_whose_support_can_not_be_asked_for_does_not_prevent_a_build(account: FakeAccount) -> None:
    account.refuse("DescribeClusterVersions", "AccessDeniedException")
    finding = finding_of(account, "Kubernetes version")
    assert finding.level == "warning" and "eks:DescribeClusterVersions in us-east-1 is not permitted" in finding.message
    assert "eks:DescribeClusterVersions" in LOOK


def test_without_a_stack_only_account_and_tools_are_checked(account: FakeAccount) -> None:
    findings = doctor(None, account, tool_output)
    assert [finding.check for finding in findings] == ["credentials", "region", *TOOL_CHECKS]


def test_credentials_of_another_account_end_the_account_checks(account: FakeAccount) -> None:
    write_stack(STACK + "  spotmpi:account: '999999999999'\n")
    findings = doctor("mine", account, tool_output)
    assert findings[0].level == "error" and "the stack to 999999999999" in findings[0].message
    assert [finding.check for finding in findings[1:]] == [*TOOL_CHECKS, "account"]


@pytest.mark.parametrize(
    ("name", "code", "service", "prefix"),
    [
        ("VPCs", "L-F678F1CE", "vpc", "vpc-"),
        ("internet gateways", "L-A4707A72", "vpc", "igw-"),
        ("Elastic IP addresses", "L-0263D0A3", "ec2", "eipalloc-"),
    ],
)
def test_a_network_needs_room_in_each_of_its_quotas(
    account: FakeAccount, name: str, code: str, service: str, prefix: str
) -> None:
    """The default VPC counts, too, and the environment's own resources are part of what it needs."""
    write_stack(STACK + "  spotmpi:network: {private: true}\n")
    resources = account.ec2.networks if prefix == "vpc-" else account.ec2.others
    resources |= {f"{prefix}{number}": {} for number in range(4)} | {f"{prefix}own": TAGS}
    assert finding_of(account, f"quota of {name}").message == f"4 of 5 {name} in us-east-1 are in use by others"
    resources[f"{prefix}4"] = {}
    finding = finding_of(account, f"quota of {name}")
    assert (finding.level, finding.message) == ("error", f"5 of 5 {name} in us-east-1 are in use by others")
    assert f"--service-code {service} --quota-code {code} --desired-value 6" in finding.command


def test_an_environment_with_public_addresses_needs_no_elastic_ip(account: FakeAccount) -> None:
    account.quotas.values["L-0263D0A3"] = 0.0
    assert not [each for each in doctor("mine", account, tool_output) if each.level == "error"]


def test_the_root_user_is_a_warning(account: FakeAccount) -> None:
    account.script("GetCallerIdentity", Account="1", Arn="arn:aws:iam::1:root")
    assert finding_of(account, "credentials").level == "warning"


def test_expired_credentials_are_one_error_and_the_tools_are_still_checked(account: FakeAccount) -> None:
    account.refuse("GetCallerIdentity", "ExpiredToken")
    findings = doctor("mine", account, tool_output)
    assert [finding.level for finding in findings] == ["error", "ok", "ok", "ok", "warning"]
    assert "have expired" in findings[0].message and "not checked without credentials" in findings[-1].message


def test_what_is_no_name_of_a_region_is_not_taken_for_wrong_credentials(account: FakeAccount) -> None:
    """AWS refuses the signature of a call in US-EAST-1."""
    write_stack(STACK.replace("us-east-1\n", "US-EAST-1\n", 1))
    findings = doctor("mine", account, tool_output)
    assert [finding.level for finding in findings] == ["error", "ok", "ok", "ok", "warning"]
    assert findings[0].message == "US-EAST-1 is not an AWS region; write it like us-east-1"
    assert "not checked without a region" in findings[-1].message


def test_a_region_that_does_not_exist_is_an_error_and_nothing_else_is_asked_there(account: FakeAccount) -> None:
    """None of its hosts answers, so all else would be a warning that it could not be checked."""
    write_stack(STACK.replace("us-east-1\n", "us-east-9\n", 1))
    findings = doctor("mine", type(account)("us-east-9"), tool_output)
    assert [finding.check for finding in findings] == ["credentials", "region", *TOOL_CHECKS, "account"]
    assert (findings[1].level, findings[1].message) == ("error", "AWS has no region us-east-9")
    assert "not checked without a region: region, zone" in findings[-1].message


REGIONAL = "  spotmpi:storage: {one_zone: false}\n"


@pytest.mark.parametrize(
    ("setting", "replacement", "check", "level", "message"),
    [
        ("us-east-1\n", "af-south-1\n", "region", "error", "is not enabled in this account: enable it"),
        ("us-east-1\n", "eu-nowhere-1\n", "region", "error", "AWS has no region eu-nowhere-1: change aws:region"),
        (
            "us-east-1a",
            "us-west-2a",
            "zone",
            "error",
            "set spotmpi:zones to some of us-east-1a, us-east-1b, us-east-1c",
        ),
        ("us-east-1a", "us-east-1d", "zone", "error", "EFS has no One Zone storage in us-east-1d (use1-az9): set"),
        ("us-east-1a]\n", f"us-east-1d]\n{REGIONAL}", "zone", "ok", "us-east-1d is use1-az9"),
        (
            "us-east-1a]\n",
            f"us-east-1b]\n{REGIONAL}",
            "zone",
            "error",
            "EKS does not support zone us-east-1b (use1-az3)",
        ),
        ("us-east-1a]\n", f"us-east-1c]\n{REGIONAL}", "zone", "ok", "us-east-1c is use1-az1"),
        ("g5.xlarge", "g99.xlarge", "group gpus", "error", "us-east-1 has no instance type g99.xlarge: change"),
        ("g5.xlarge", "t3.xlarge", "group gpus", "error", "t3.xlarge does not support cluster placement groups: set"),
        ("g5.xlarge", "t3.xlarge, placement_group: false", "group gpus", "ok", "t3.xlarge is offered in us-east-1a"),
    ],
)
def test_an_unusable_setting_is_an_error_with_the_remedy(
    account: FakeAccount, setting: str, replacement: str, check: str, level: str, message: str
) -> None:
    account.ec2.zones["us-east-1"]["us-east-1d"] = "use1-az9"  # a zone younger than the table
    write_stack(STACK.replace(setting, replacement))
    finding = finding_of(account, check)
    assert finding.level == level and message in f"{finding.message}: {finding.remedy}"


def test_a_zone_is_supported_by_its_id_whatever_its_letter(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"]["us-east-1b"] = "use1-az2"
    write_stack(STACK.replace("us-east-1a", "us-east-1b"))
    assert finding_of(account, "zone").level == "ok"


DEFAULT = STACK.replace("  spotmpi:second_zone: us-east-1c\n", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEFAULT, "EKS does not support zone us-east-1b (use1-az3), the default"),
        (STACK.replace("us-east-1c", "us-east-1b"), "EKS does not support zone us-east-1b (use1-az3)"),
        (STACK.replace("us-east-1c", "us-east-1f"), "us-east-1 has no zone us-east-1f"),
        (STACK.replace("us-east-1c", "us-east-1a"), "us-east-1a is the first zone; EKS needs a second one"),
    ],
)
def test_an_unusable_second_zone_lists_the_usable_ones(account: FakeAccount, text: str, message: str) -> None:
    account.ec2.zones["us-east-1"]["us-east-1d"] = "use1-az4"
    write_stack(text)
    finding = finding_of(account, "second zone")
    assert (finding.level, finding.message) == ("error", message)
    assert finding.remedy == "set spotmpi:second_zone to one of us-east-1c, us-east-1d"


def test_the_default_second_zone_is_that_of_infra_and_checked_by_its_id(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az4"}
    write_stack(DEFAULT)
    assert finding_of(account, "second zone").message == "us-east-1b is use1-az4"
    for zone in ("us-east-1a", "us-east-1b", "us-east-1f"):
        settings = Settings(stack="mine", region="us-east-1", zones=(zone,))
        assert settings.other_zone == default_second_zone("us-east-1", zone)


BLOCKED = {"PublicAccessBlockConfiguration": state_bucket.PRIVATE}
VERSIONED = {"VersioningConfiguration": {"Status": "Enabled"}}


@pytest.mark.parametrize(
    ("buckets", "level", "message"),
    [
        ({}, "warning", "bucket my-state for Pulumi's state does not exist"),
        ({"my-state": BLOCKED}, "warning", "my-state is not versioned"),
        ({"my-state": VERSIONED}, "warning", "my-state does not block public access"),
        ({"my-state": {**BLOCKED, **VERSIONED}}, "ok", "my-state is private and versioned"),
    ],
)
def test_the_bucket_of_pulumis_state_is_private_and_versioned(
    account: FakeAccount, monkeypatch: pytest.MonkeyPatch, buckets: Mapping[str, Any], level: str, message: str
) -> None:
    account.s3.buckets = dict(buckets)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://my-state")
    finding = finding_of(account, "state bucket")
    assert (finding.level, finding.message) == (level, message) and bool(finding.remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("name", "answer", "level", "message"),
    [
        ("pulumi", None, "error", "command not found"),
        ("pulumi", "v3.199.0", "error", "v3.199.0 is too old"),
        ("pulumi", "3.200.1-dev", "ok", "3.200.1"),
        ("kubectl", None, "warning", "command not found"),
        ("kubectl", "Client Version: v1.30.2", "warning", "v1.30.2 is too old"),
        ("kubectl", "", "warning", "unknown version"),
    ],
)
def test_each_tool_must_be_installed_and_new_enough(
    account: FakeAccount, name: str, answer: str | None, level: str, message: str
) -> None:
    finding = finding_of(account, name, lambda command: answer if command[0] == name else TOOLS.get(command[0]))
    assert finding.level == level and message in finding.message
    assert finding.level == "ok" or finding.command.startswith("https://")


@pytest.mark.parametrize("name", ["buildah", "podman", "docker"])
def test_one_of_the_programs_that_build_images_has_to_be_there(account: FakeAccount, name: str) -> None:
    others = {tool: TOOLS[tool] for tool in ("pulumi", "kubectl")}

    found = finding_of(account, "image builder", lambda command: {**others, name: ""}.get(command[0]))
    none = finding_of(account, "image builder", lambda command: others.get(command[0]))

    assert (found.level, found.message) == ("ok", name)
    assert (none.level, none.message) == ("warning", "none of buildah, podman, docker found")
    assert "spotmpi up" in none.remedy and "--no-images" in none.remedy


def test_versions_are_read_from_real_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pulumi"
    program.write_text('#!/bin/sh\necho "v3.$#.7"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_tool(("pulumi", "version")) == "v3.1.7\n"
    assert run_tool(("no-such-program",)) is None


def test_a_type_that_the_zone_does_not_offer_is_an_error_with_the_remedy(account: FakeAccount) -> None:
    account.ec2.not_offered.add(("g5.xlarge", "us-east-1a"))
    finding = finding_of(account, "group gpus")
    assert (finding.level, finding.message) == ("error", "g5.xlarge is not offered in us-east-1a")
    assert finding.command == "spotmpi zones --types g5.xlarge --nodes 8 --write mine"


@pytest.mark.parametrize(
    ("quota", "running", "level", "message"),
    [
        (32.0, [], "ok", "leaves 32 vCPUs: 8 of 8"),
        (32.0, ["g4dn.xlarge"], "warning", "leaves 28 vCPUs: 7 of 8"),
        (3.0, [], "error", "leaves 3 vCPUs: 0 of 8"),
        (0.0, ["g4dn.xlarge"], "error", "leaves 0 vCPUs: 0 of 8"),
    ],
)
def test_the_quota_is_compared_with_the_groups_max(
    account: FakeAccount, quota: float, running: list[str], level: str, message: str
) -> None:
    account.quotas.values["L-3819A6DF"], account.ec2.spot_types["us-east-1"] = quota, running
    finding = finding_of(account, "quota of gpus")
    assert finding.level == level and message in finding.message
    assert ("--request-quota" in finding.command) == (level != "ok")


CPUS = {"CoreCount": 1, "ThreadsPerCore": 2}


@pytest.mark.parametrize(
    ("settings", "quota", "level", "message"),
    [
        ("", 5.0, "ok", "on-demand standard (A, C, D, H, I, M, R, T, Z) leaves 5 vCPUs: 2 of 2 x t3.medium"),
        ("", 3.0, "warning", "leaves 3 vCPUs: 1 of 2 x t3.medium"),
        ("{type: t3.xlarge, nodes: 1}", 3.0, "error", "leaves 3 vCPUs: 0 of 3 x t3.xlarge"),
        ("{nodes: 1}", 5.0, "warning", "leaves 5 vCPUs: 2 of 3 x t3.medium"),  # two more for an update
    ],
)
def test_the_quota_of_on_demand_nodes_is_checked_too(
    account: FakeAccount, settings: str, quota: float, level: str, message: str
) -> None:
    write_stack(STACK + (f"  spotmpi:cluster: {{system: {settings}}}\n" if settings else ""))
    account.quotas.values["L-1216C47A"] = quota
    finding = finding_of(account, "quota of system")
    assert (finding.level, message in finding.message) == (level, True)
    assert ("request-service-quota-increase" in finding.command) == (level != "ok")


def test_on_demand_groups_have_what_the_system_nodes_leave_of_their_quota(account: FakeAccount) -> None:
    write_stack(STACK.replace("type: g5.xlarge", "type: t3.xlarge, market: on-demand"))
    account.quotas.values["L-1216C47A"] = 32.0
    finding = finding_of(account, "quota of gpus")
    assert (finding.level, "leaves 28 vCPUs: 7 of 8 x t3.xlarge" in finding.message) == ("warning", True)
    assert "--desired-value 36 " in finding.command
    assert finding_of(account, "quota of system").level == "ok"


def test_nodes_that_the_environment_runs_already_are_part_of_what_it_needs(account: FakeAccount) -> None:
    """Else `up` and `doctor` would refuse an environment whose nodes are all in use."""
    account.quotas.values |= {"L-3819A6DF": 32.0, "L-1216C47A": 4.0}
    node = machine(tags=TAGS, CpuOptions=CPUS, InstanceLifecycle="spot")
    system = machine(tags=TAGS, CpuOptions=CPUS, InstanceType="t3.medium")
    account.ec2.machines = {**{f"i-{number}": node for number in range(8)}, "i-8": system, "i-9": system}
    assert {finding_of(account, f"quota of {name}").level for name in ("gpus", "system")} == {"ok"}
    account.ec2.machines["i-other"] = machine(CpuOptions=CPUS, InstanceType="t3.medium")
    finding = finding_of(account, "quota of system")
    assert (finding.level, "leaves 2 vCPUs: 1 of 2 x t3.medium" in finding.message) == ("warning", True)
    assert "--desired-value 6 " in finding.command


def test_the_system_nodes_of_a_stack_that_names_none_are_those_of_infra(account: FakeAccount) -> None:
    system, settings = read_stack("mine").system, Settings(stack="mine", region="us-east-1", zones=("us-east-1a",))
    assert (system.type, system.max) == (settings.cluster.system.type, settings.cluster.system.nodes)


@pytest.mark.parametrize("kind", LEFTOVERS)
def test_leftovers_of_a_former_environment_come_with_a_command(account: FakeAccount, kind: str) -> None:
    account.efs.file_systems["fs-1"] = account.ec2.volumes["vol-1"] = TAGS
    account.efs.mount_targets["fsmt-1"] = "fs-1"
    account.ec2.interfaces["eni-1"] = ("vpc-1", "available", TAGS)
    account.logs.groups.add("/aws/eks/spotmpi-mine/cluster")
    finding = finding_of(account, f"leftover {kind}")
    assert finding.level == "warning" and "1 of a former spotmpi-mine" in finding.message
    assert LEFTOVERS[kind] in finding.message and LEFTOVERS[kind] in finding.command
    assert finding.command.endswith("--region us-east-1")


def test_resources_of_others_are_no_leftovers(account: FakeAccount) -> None:
    account.efs.file_systems["fs-2"] = {"spotmpi:environment": "spotmpi-mine-data"}
    assert finding_of(account, "leftover file systems").level == "ok"
    filters = [request["Filters"][0] for request in account.requests_of("DescribeNetworkInterfaces")]
    assert all("spotmpi-mine" in (*each["Values"], each["Name"].rpartition("/")[2]) for each in filters)
    assert {each["Name"] for each in filters} >= {"tag:spotmpi:environment", "tag:cluster.k8s.amazonaws.com/name"}


def test_interfaces_that_the_cni_left_in_our_network_are_found_without_our_tag(account: FakeAccount) -> None:
    account.ec2.interfaces["eni-7"] = ("vpc-1", "available", {"node.k8s.amazonaws.com/instance_id": "i-1"})
    assert finding_of(account, "leftover network interfaces").level == "ok"
    account.ec2.networks["vpc-1"] = TAGS
    assert "eni-7" in finding_of(account, "leftover network interfaces").message


def test_a_built_environment_has_no_leftovers(account: FakeAccount) -> None:
    account.efs.file_systems["fs-1"] = TAGS
    account.eks.version = "1.35"
    finding = finding_of(account, "leftover file systems")
    assert (finding.level, finding.message) == ("ok", "spotmpi-mine is built: tagged resources are in use")


def test_a_stack_with_the_roles_of_ci_has_neither_zone_nor_quota(account: FakeAccount) -> None:
    write_stack("config:\n  aws:region: us-east-1\n  spotmpi:kind: account\n")
    checks = {finding.check for finding in doctor("mine", account, tool_output)}
    assert not [check for check in checks if check.startswith(("leftover", "zone", "quota", "type"))]


def test_persistent_storage_is_no_leftover_of_its_own_stack(account: FakeAccount) -> None:
    write_stack("config:\n  aws:region: us-east-1\n  spotmpi:zones: [us-east-1a]\n  spotmpi:kind: data\n")
    assert not [finding for finding in doctor("mine", account, tool_output) if finding.check.startswith("leftover")]


THREE = STACK.replace("[us-east-1a]", "[us-east-1a, us-east-1c, us-east-1d]")


def test_each_zone_has_its_offer_with_its_price_and_its_support_by_eks(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"]["us-east-1d"] = "use1-az4"
    account.ec2.not_offered.add(("g5.xlarge", "us-east-1d"))
    account.ec2.spot_prices["g5.xlarge"] = 0.4
    account.ec2.zone_prices["g5.xlarge", "us-east-1c"] = 0.5
    write_stack(THREE)
    findings = doctor("mine", account, tool_output)
    assert [each.message for each in findings if each.check == "zone"] == [
        "us-east-1a is use1-az6",
        "us-east-1c is use1-az1",
        "us-east-1d is use1-az4",
    ]
    offers = [each for each in findings if each.check == "group gpus"]
    assert [each.message for each in offers] == [
        "g5.xlarge is offered in us-east-1a, spot for $0.4 an hour",
        "g5.xlarge is offered in us-east-1c, spot for $0.5 an hour",
        "g5.xlarge is not offered in us-east-1d",
    ]
    assert offers[-1].remedy == "use another zone or type, or set the group's `zones` to those that offer it"
    quota = finding_of(account, "quota of gpus").message
    assert quota.endswith("of 8 x g5.xlarge in a zone; its 3 zones share the quota")


BLOCK = "cr-0123456789abcdef0"


def block_findings(account: FakeAccount, group: str, zones: str = "us-east-1a", **block: Any) -> list[Finding]:
    """What is found of a group in a Capacity Block, beside all other checks of its stack."""
    bought = block.pop("bought", True)
    account.ec2.reservations = [capacity_block(**block)] if bought else []
    account.ec2.reservations.append({**capacity_block("cr-00000001"), "ReservationType": "default"})
    values = f"market: capacity-block, reservation: {BLOCK}, {group}"
    write_stack(STACK.replace("us-east-1a", zones).replace("type: g5.xlarge, max: 8", values))
    findings = doctor("mine", account, tool_output)
    offered = [each for each in findings if each.check == "group gpus"]
    assert all(each.message.endswith(", in a Capacity Block that is paid in advance") for each in offered)
    assert not [each for each in findings if each.check == "quota of gpus"], "of spot and on-demand instances"
    return [each for each in findings if each.check == "Capacity Block of gpus"]


def test_a_group_in_a_capacity_block_is_compared_with_what_was_bought(account: FakeAccount) -> None:
    (finding,) = block_findings(account, "type: g5.xlarge, max: 8")
    assert (finding.level, finding.message) == (
        "ok",
        f"{BLOCK}: 8 x g5.xlarge in us-east-1a, scheduled, from 2026-11-21 11:30 to 2026-11-23 11:30 UTC",
    )
    findings = block_findings(account, "type: g4dn.xlarge, max: 9", "us-east-1a, us-east-1c", TotalInstanceCount=4)
    assert [(each.level, each.message, each.remedy) for each in findings] == [
        ("error", f"{BLOCK}: has g5.xlarge, not g4dn.xlarge", "set the group's type to g5.xlarge"),
        (
            "error",
            f"{BLOCK}: is in us-east-1a, not in us-east-1a, us-east-1c",
            "set the group's `zones` to [us-east-1a]",
        ),
        ("error", f"{BLOCK}: has 4 nodes, not 9", "set the group's max to 4"),
    ]
    (finding,) = block_findings(account, "type: g5.xlarge, max: 8", "us-east-1c")
    assert finding.remedy == "set the group's `zones` to [us-east-1a], and add it to `zones` of the stack"


def test_a_capacity_block_that_is_over_is_a_warning_and_one_that_nobody_bought_an_error(account: FakeAccount) -> None:
    (finding,) = block_findings(account, "type: g5.xlarge, max: 8", state="expired")
    assert finding.level == "warning" and finding.message == (
        f"{BLOCK}: expired: it was there from 2026-11-21 11:30 to 2026-11-23 11:30 UTC, so no node starts in it"
    )
    (finding,) = block_findings(account, "type: g5.xlarge, max: 8", id="cr-00000002")
    assert finding.level == "error" and finding.message == f"us-east-1 has no Capacity Block {BLOCK}"
    assert finding.remedy.startswith("set the group's reservation to one that was bought: cr-00000002 (8 x g5.xlarge ")
    (finding,) = block_findings(account, "type: g5.xlarge, max: 8", bought=False)
    assert finding.remedy.endswith("one that was bought: the account has none here")
    account.refuse("DescribeCapacityReservations", "UnauthorizedOperation")
    (finding,) = [each for each in doctor("mine", account, tool_output) if each.check == "Capacity Blocks"]
    assert (
        finding.level == "warning" and "DescribeCapacityReservations in us-east-1 is not permitted" in finding.message
    )
    assert "ec2:DescribeCapacityReservations" in LOOK
