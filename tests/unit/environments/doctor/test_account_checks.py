"""The doctor on what AWS says of a live environment, each check passing and failing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from spotmpi.aws.launch_failures import LAUNCH_FAILURES, explain_failure
from tests.unit.environments.doctor.healthy_environment import TAGS, HealthyEnvironment


def test_add_ons_that_are_missing_or_unhealthy_are_errors(healthy: HealthyEnvironment) -> None:
    issue = {"code": "InsufficientNumberOfReplicas", "message": "no node for it"}
    healthy.account.eks.addons = {"vpc-cni": "v1"}
    healthy.account.script("DescribeAddon", addon={"status": "DEGRADED", "health": {"issues": [issue]}})

    findings = healthy.findings()

    assert findings["add-on coredns"].message == "is not installed"
    assert findings["add-on vpc-cni"].message == "is DEGRADED: no node for it"


NODE_GROUP = "node group spotmpi-mine-g4dn-1234567"


@pytest.mark.parametrize("code", LAUNCH_FAILURES)
def test_an_unhealthy_node_group_has_awss_reason(healthy: HealthyEnvironment, code: str) -> None:
    issue = {"code": code, "message": "long story"}
    healthy.account.script("DescribeNodegroup", nodegroup={"status": "DEGRADED", "health": {"issues": [issue]}})

    finding = healthy.findings()[NODE_GROUP]

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

    finding = healthy.findings()[NODE_GROUP]

    assert finding.level == "warning" and finding.remedy == LAUNCH_FAILURES[code].remedy
    assert finding.message == f"the last instance launch failed (2026-11-20 03:04 UTC): {LAUNCH_FAILURES[code].message}"


def test_an_unknown_reason_keeps_awss_message() -> None:
    assert explain_failure("NewCode", "never\nseen").message == "NewCode: never seen"


@pytest.mark.parametrize("key", [key for key in TAGS if key != "eks:cluster-name"])
def test_a_scaling_group_without_the_autoscalers_tags_is_an_error(healthy: HealthyEnvironment, key: str) -> None:
    healthy.account.autoscaling.add("eks-g4dn", {**TAGS, key: "other"})

    finding = healthy.findings()["scaling of g4dn"]

    assert finding.level == "error" and finding.remedy.startswith("run `pulumi up`")
    assert key in finding.message or "no Auto Scaling group has this group's tag" in finding.message


def test_nodes_that_are_warm_are_reported(healthy: HealthyEnvironment) -> None:
    healthy.account.autoscaling.groups["eks-g4dn"]["MinSize"] = 2

    assert healthy.findings()["scaling of g4dn"].message == "1 of 2 nodes; 2 kept warm by `spotmpi scale`"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            {"AvailabilityZoneName": "us-east-1b", "LifeCycleState": "available"},
            "none in us-east-1a (in other zones: us-east-1b)",
        ),
        ({"AvailabilityZoneName": "us-east-1a", "LifeCycleState": "creating"}, "is creating"),
    ],
)
def test_an_unusable_mount_target_is_an_error(
    healthy: HealthyEnvironment, target: dict[str, str], message: str
) -> None:
    healthy.account.script("DescribeMountTargets", MountTargets=[{"MountTargetId": "fsmt-12345678", **target}])

    findings = healthy.findings()

    assert findings["mount target"].message == message and "port 2049" not in findings


@pytest.mark.parametrize(
    "rule",
    [
        {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22},
        {"IsEgress": True, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049},
        {"IsEgress": False, "IpProtocol": "udp", "FromPort": 2049, "ToPort": 2049},
    ],
)
def test_a_port_that_the_nodes_cannot_reach_is_an_error(healthy: HealthyEnvironment, rule: dict[str, Any]) -> None:
    healthy.account.script(
        "DescribeSecurityGroupRules", SecurityGroupRules=[{**rule, "ReferencedGroupInfo": {"GroupId": "sg-nodes"}}]
    )
    assert "allows the nodes (sg-nodes): mounting would hang" in healthy.findings()["port 2049"].message

    strange = {"IsEgress": False, "IpProtocol": "-1", "ReferencedGroupInfo": {"GroupId": "sg-other"}}
    healthy.account.script("DescribeSecurityGroupRules", SecurityGroupRules=[strange])
    assert healthy.findings()["port 2049"].level == "error"
    healthy.account.script(
        "DescribeSecurityGroupRules", SecurityGroupRules=[{**strange, "ReferencedGroupInfo": {"GroupId": "sg-nodes"}}]
    )
    assert healthy.findings()["port 2049"].level == "ok"


@pytest.mark.parametrize("code", ["ImageNotFoundException", "RepositoryNotFoundException"])
def test_an_image_missing_from_the_registry_is_reported_with_the_command(
    healthy: HealthyEnvironment, code: str
) -> None:
    healthy.account.refuse("DescribeImages", code)

    finding = healthy.findings()["image chainermn"]

    assert finding.level == "warning" and finding.command == "spotmpi image push chainermn --on mine"
