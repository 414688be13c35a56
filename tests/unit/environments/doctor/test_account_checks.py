"""The doctor on what AWS says of a live environment, each check passing and failing."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.launch_failures import LAUNCH_FAILURES, explain_failure
from spotmpi.environments.checks.account import kubernetes_version
from spotmpi.environments.checks.check import Finding, LiveEnvironment, Subject
from spotmpi.environments.doctor import doctor
from tests.unit.environments.doctor.scenarios import (
    AUTOSCALER_TAGS,
    FROM_NODES,
    GROUP_TAGS,
    MOUNT_TARGET,
    NFS_RULE,
    NODE_GROUP,
    TAGS,
    TEMPLATE,
    HealthyEnvironment,
    tool_output,
    write_stack,
)

NODE_GROUP_CHECK = "node group spotmpi-mine-g4dn-1234567"
VERSION_CHECK = "Kubernetes version"
ENDS = datetime(2027, 3, 27, tzinfo=UTC)
PRICE = "EKS bills $0.60 an hour for the control plane in place of $0.10, or upgrades it by itself at any time"
OVER = f"standard support of 1.35 ended on 2027-03-27: {PRICE}"
SOON = "standard support of 1.35 ends on 2027-03-27, in 90 days: then EKS upgrades the control plane"


def support(healthy: HealthyEnvironment, ends: datetime, status: str, today: date) -> Finding:
    """What is found on a day, where EKS says that standard support ends then."""
    version = {"clusterVersion": "1.35", "versionStatus": status, "endOfStandardSupportDate": ends}
    healthy.account.script("DescribeClusterVersions", clusterVersions=[version])
    subject = Subject(healthy.account, "us-east-1", None, tool_output)
    (finding,) = kubernetes_version(subject, LiveEnvironment(healthy.environment, healthy.cluster.view()), today)
    return finding


@pytest.mark.parametrize(
    ("today", "status", "level", "message"),
    [
        (date(2026, 12, 26), "STANDARD_SUPPORT", "ok", "1.35, in standard support until 2027-03-27"),
        (date(2026, 12, 27), "STANDARD_SUPPORT", "warning", SOON),
        (date(2027, 3, 28), "STANDARD_SUPPORT", "error", OVER),
        (date(2027, 3, 27), "EXTENDED_SUPPORT", "error", OVER),
    ],
)
def test_support_that_ends_is_reported_in_time(
    healthy: HealthyEnvironment, today: date, status: str, level: str, message: str
) -> None:
    finding = support(healthy, ENDS, status, today)
    assert (finding.level, finding.message) == (level, message)
    assert finding.command == ("" if level == "ok" else "spotmpi upgrade mine")
    assert healthy.account.requests_of("DescribeClusterVersions")[-1] == {"clusterVersions": ["1.35"]}


def test_a_day_counts_in_utc_as_aws_bills_it(healthy: HealthyEnvironment) -> None:
    evening = datetime.fromisoformat("2027-03-26T17:00:00-07:00")
    assert "until 2027-03-27" in support(healthy, evening, "STANDARD_SUPPORT", date(2026, 1, 1)).message


def test_the_doctor_reports_support_and_where_it_is_unknown(healthy: HealthyEnvironment) -> None:
    healthy.account.script("DescribeClusterVersions", clusterVersions=[])
    assert healthy.findings()[VERSION_CHECK].message == "1.35: the end of its standard support is unknown"
    healthy.account.refuse("DescribeClusterVersions", "AccessDeniedException")
    finding = healthy.findings()[VERSION_CHECK]
    assert finding.level == "warning" and "eks:DescribeClusterVersions in us-east-1 is not permitted" in finding.message


def test_nodes_older_than_the_control_plane_are_named(healthy: HealthyEnvironment) -> None:
    older = {**NODE_GROUP, "version": "1.34", "releaseVersion": "1.34.6-20260501"}
    healthy.account.script("DescribeNodegroup", nodegroup=older)
    finding = healthy.findings()["node versions"]
    assert (finding.level, finding.command) == ("warning", "spotmpi upgrade mine")
    assert finding.message == "spotmpi-mine-g4dn-1234567 are older than the control plane, 1.35"


def test_add_ons_that_are_missing_or_unhealthy_are_errors(healthy: HealthyEnvironment) -> None:
    issue = {"code": "InsufficientNumberOfReplicas", "message": "no node for it"}
    healthy.account.eks.addons = {"vpc-cni": "v1"}
    healthy.account.script("DescribeAddon", addon={"status": "DEGRADED", "health": {"issues": [issue]}})
    findings = healthy.findings()
    assert findings["add-on coredns"].message == "is not installed"
    assert findings["add-on vpc-cni"].message == "is DEGRADED: no node for it"


@pytest.mark.parametrize("code", LAUNCH_FAILURES)
def test_an_unhealthy_node_group_has_awss_reason(healthy: HealthyEnvironment, code: str) -> None:
    issue = {"code": code, "message": "long story"}
    healthy.account.script("DescribeNodegroup", nodegroup={"status": "DEGRADED", "health": {"issues": [issue]}})
    finding = healthy.findings()[NODE_GROUP_CHECK]
    assert (finding.level, finding.message, finding.remedy) == ("error", *LAUNCH_FAILURES[code])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded. Launching "
         "EC2 instance failed.", "MaxSpotInstanceCountExceeded"),
        ("We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).",
         "UnfulfillableCapacity"),
        ("Could not launch Spot Instances. UnfulfillableCapacity - Unable", "UnfulfillableCapacity"),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows", "VcpuLimitExceeded"),
    ],
)  # fmt: skip
def test_a_failed_instance_launch_is_a_warning_with_the_reason(
    healthy: HealthyEnvironment, message: str, code: str
) -> None:
    failed = {
        "Description": "Launching a new EC2 instance.  Status Reason: ...",
        "StatusCode": "Failed",
        "StatusMessage": message,
        "StartTime": datetime(2026, 11, 20, 3, 4, tzinfo=UTC),
    }
    healthy.account.autoscaling.activities["eks-g4dn"] = [failed]
    finding = healthy.findings()[NODE_GROUP_CHECK]
    assert finding.level == "warning" and finding.remedy == LAUNCH_FAILURES[code].remedy
    assert finding.message == f"the last instance launch failed (2026-11-20 03:04 UTC): {LAUNCH_FAILURES[code].message}"


def test_an_unknown_reason_keeps_awss_message() -> None:
    assert explain_failure("NewCode", "never\nseen").message == "NewCode: never seen"


@pytest.mark.parametrize("key", AUTOSCALER_TAGS)
def test_a_scaling_group_without_the_autoscalers_tags_is_an_error(healthy: HealthyEnvironment, key: str) -> None:
    healthy.account.autoscaling.add("eks-g4dn", {**GROUP_TAGS, key: "other"})
    finding = healthy.findings()["scaling of g4dn"]
    assert finding.level == "error" and finding.remedy.startswith("run `pulumi up --refresh`")
    assert key in finding.message or "no Auto Scaling group has this group's tag" in finding.message


def test_the_tag_for_efa_is_one_of_them(healthy: HealthyEnvironment) -> None:
    """Without it the autoscaler takes a new node of the group for one without EFA, which no such pod fits."""
    (group,) = healthy.environment.node_groups
    with_efa = group.model_copy(update={"efa_interfaces": 4})
    healthy.environment = healthy.environment.model_copy(update={"node_groups": (with_efa,)})
    key = f"{TEMPLATE}/resources/vpc.amazonaws.com/efa"
    assert healthy.findings()["scaling of g4dn"].message == f"missing or different tags: {key}"
    healthy.account.autoscaling.add("eks-g4dn", {**GROUP_TAGS, key: "4"})
    assert healthy.findings()["scaling of g4dn"].level == "ok"


def test_nodes_that_are_warm_are_reported(healthy: HealthyEnvironment) -> None:
    healthy.account.autoscaling.groups["eks-g4dn"]["MinSize"] = 2
    assert healthy.findings()["scaling of g4dn"].message == "1 of 2 nodes; 2 kept warm by `spotmpi scale`"


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"AvailabilityZoneName": "us-east-1b"}, "none in us-east-1a (in other zones: us-east-1b)"),
        ({"LifeCycleState": "creating"}, "is creating"),
    ],
)
def test_an_unusable_mount_target_is_an_error(
    healthy: HealthyEnvironment, difference: dict[str, str], message: str
) -> None:
    healthy.account.script("DescribeMountTargets", MountTargets=[{**MOUNT_TARGET, **difference}])
    findings = healthy.findings()
    assert findings["mount target"].message == message and "port 2049" not in findings


def test_a_zone_without_a_mount_target_of_its_own_is_said(healthy: HealthyEnvironment) -> None:
    (first,) = healthy.environment.node_groups
    second = first.model_copy(update={"name": "g4dn-b", "group": "g4dn", "zone": "us-east-1b"})
    healthy.environment = healthy.environment.model_copy(update={"node_groups": (first, second)})

    def found() -> list[Finding]:
        findings = doctor("mine", healthy.account, tool_output, healthy.open_live)
        return [each for each in findings if each.check == "mount target"]

    def messages() -> list[str]:
        return [each.message for each in found()]

    system = healthy.environment.file_system_id
    healthy.account.efs.file_systems[system], healthy.account.efs.zones[system] = TAGS, "us-east-1a"
    assert messages() == [
        "none in us-east-1b: its nodes reach the one in us-east-1a across zones, which is billed",
        "available in us-east-1a",
    ]
    healthy.account.efs.zones.clear()  # regional storage, whose name resolves in zones with a mount target alone
    missing, present = found()
    assert missing.message == "none in us-east-1b: its nodes can't mount the regional file system"
    assert (missing.level, present.level) == ("error", "ok")
    other = {**MOUNT_TARGET, "AvailabilityZoneName": "us-east-1b", "MountTargetId": "fsmt-2", "LifeCycleState": "error"}
    healthy.account.script("DescribeMountTargets", MountTargets=[MOUNT_TARGET, other])
    assert messages() == ["available in us-east-1a", "in us-east-1b is error"]


@pytest.mark.parametrize(
    ("rule", "level"),
    [
        ({**NFS_RULE, "FromPort": 22, "ToPort": 22}, "error"),
        ({**NFS_RULE, "IsEgress": True}, "error"),
        ({**NFS_RULE, "IpProtocol": "udp"}, "error"),
        ({"ReferencedGroupInfo": {"GroupId": "sg-other"}, "IsEgress": False, "IpProtocol": "-1"}, "error"),
        ({**FROM_NODES, "IsEgress": False, "IpProtocol": "-1"}, "ok"),
    ],
    ids=["another port", "egress", "another protocol", "another group", "all traffic"],
)
def test_a_port_that_the_nodes_cannot_reach_is_an_error(
    healthy: HealthyEnvironment, rule: dict[str, Any], level: str
) -> None:
    healthy.account.script("DescribeSecurityGroupRules", SecurityGroupRules=[rule])
    finding = healthy.findings()["port 2049"]
    assert finding.level == level
    assert ("allows the nodes (sg-nodes): mounting would hang" in finding.message) == (level == "error")


@pytest.mark.parametrize("code", ["ImageNotFoundException", "RepositoryNotFoundException"])
def test_an_image_missing_from_the_registry_is_reported_with_the_command(
    healthy: HealthyEnvironment, code: str
) -> None:
    healthy.account.refuse("DescribeImages", code)
    finding = healthy.findings()["image chainermn"]
    assert finding.level == "warning" and finding.command == "spotmpi image push chainermn --on mine"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"zones": "us-east-1a, us-east-1b, us-east-1c"}, "g4dn in us-east-1b, us-east-1c"),
        ({"zones": "us-east-1a, us-east-1b", "of group": ", zones: [us-east-1a]"}, None),
        ({"zones": "us-east-1a, us-east-1b", "of group": ", zones: [us-east-1b]"}, "g4dn in us-east-1b"),
        ({"more": "    - {name: g6, type: g6.xlarge, max: 2}\n"}, "g6 in us-east-1a"),
        (
            {"zones": "us-east-1a, us-east-1b", "more": "    - {name: g6, type: g6.xlarge, zones: [us-east-1b]}\n"},
            "g4dn in us-east-1b; g6 in us-east-1b",
        ),
    ],
)
def test_zones_of_the_file_that_are_not_built_are_named_with_the_remedy(
    healthy: HealthyEnvironment, settings: dict[str, str], missing: str | None
) -> None:
    text = Path("stacks/Pulumi.mine.yaml").read_text()
    text = text.replace("zones: [us-east-1a]", f"zones: [{settings.get('zones', 'us-east-1a')}]")
    write_stack(text.replace("max: 2}", f"max: 2{settings.get('of group', '')}}}") + settings.get("more", ""))
    finding = healthy.findings().get("zones of groups")
    assert (missing is None) == (finding is None)
    if finding:
        assert finding.message == f"in Pulumi.mine.yaml but not built: {missing}"
        assert (finding.level, finding.command) == ("warning", "spotmpi up mine")


def test_the_zones_of_a_group_that_are_built_are_not_named(healthy: HealthyEnvironment) -> None:
    """The group of a second zone has a name of its own, and that of the file besides."""
    (first,) = healthy.environment.node_groups
    second = first.model_copy(update={"group": "g4dn", "name": "g4dn-b", "zone": "us-east-1b"})
    healthy.environment = healthy.environment.model_copy(update={"node_groups": (first, second)})
    write_stack(Path("stacks/Pulumi.mine.yaml").read_text().replace("[us-east-1a]", "[us-east-1a, us-east-1b]"))
    assert "zones of groups" not in healthy.findings()
