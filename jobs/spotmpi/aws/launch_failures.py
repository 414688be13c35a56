"""Why AWS launches no instance: its error codes, what to do about each, and the last failure of a node group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from spotmpi.aws.account import Aws
from spotmpi.aws.eks import require_account
from spotmpi.aws.scaling import scaling_groups
from spotmpi.core.environment import Environment


class LaunchFailure(NamedTuple):
    """What an error code means, and the remedy."""

    message: str
    remedy: str


_ACTIVITIES = 10  # the newest activities that are read; launches and terminations alternate
_OTHER_ZONE = (
    "`spotmpi zones` compares zones and types; a run goes on to other zones of its environment by itself, and to "
    "another group if its spec names it"
)
_NO_ADDRESSES = LaunchFailure("the subnet has no free addresses", "set a larger `network.cidr`")
LAUNCH_FAILURES: dict[str, LaunchFailure] = {
    "InsufficientInstanceCapacity": LaunchFailure("AWS has no capacity for this type in the zone", _OTHER_ZONE),
    "UnfulfillableCapacity": LaunchFailure("AWS has no spot capacity for this type in the zone", _OTHER_ZONE),
    "SpotMaxPriceTooLow": LaunchFailure("the spot price is above the on-demand price", _OTHER_ZONE),
    "MaxSpotInstanceCountExceeded": LaunchFailure(
        "the account's spot quota is exhausted", "`spotmpi zones --request-quota` requests an increase"
    ),
    "VcpuLimitExceeded": LaunchFailure(
        "the account's on-demand quota is exhausted", "request an increase in Service Quotas, service ec2"
    ),
    "InstanceLimitExceeded": LaunchFailure(
        "the account's instance limit is reached", "request an increase in Service Quotas"
    ),
    "InsufficientFreeAddresses": _NO_ADDRESSES,
    "InsufficientFreeAddressesInSubnet": _NO_ADDRESSES,
    # EFS API Reference, CreateMountTarget
    "NoFreeAddressesInSubnet": _NO_ADDRESSES,
    "AccessDenied": LaunchFailure("EKS lacks permissions", "run `pulumi up --refresh`: it restores the roles"),
    "NodeCreationFailure": LaunchFailure(
        "instances start but don't join the cluster", "check their route to the API: route tables, NAT, endpoint"
    ),
    "IamNodeRoleNotFound": LaunchFailure("the nodes' IAM role does not exist", "run `pulumi up --refresh`"),
    "IamInstanceProfileNotFound": LaunchFailure(
        "the nodes' instance profile does not exist", "run `pulumi up --refresh`"
    ),
    "AutoScalingGroupNotFound": LaunchFailure(
        "the Auto Scaling group was deleted manually", "run `pulumi up --refresh`"
    ),
    "Ec2LaunchTemplateNotFound": LaunchFailure("the launch template was deleted manually", "run `pulumi up --refresh`"),
    "Ec2LaunchTemplateVersionMismatch": LaunchFailure(
        "the launch template was changed manually", "run `pulumi up --refresh`; don't edit it"
    ),
    "Ec2SecurityGroupNotFound": LaunchFailure("the cluster's security group does not exist", "rebuild the environment"),
    "Ec2SubnetNotFound": LaunchFailure("the nodes' subnet does not exist", "rebuild the environment"),
    "Unsupported": LaunchFailure("EC2 doesn't offer this type in the zone", _OTHER_ZONE),
    # kubernetes/kops#16475, eksctl#6064
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": LaunchFailure(
        "the account has no role for spot instances yet",
        "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    # aws-samples/eks-workshop-v2#1644, karpenter-provider-aws#9004
    "not eligible for Free Tier": LaunchFailure(
        "the account's free plan does not include this type",
        "upgrade the account to the paid plan in the Billing console",
    ),
    "PendingVerification": LaunchFailure(
        "AWS verifies a new account in this region first", "wait for its e-mail, up to 4 hours"
    ),
    "Blocked": LaunchFailure("AWS has blocked the account", "open a case with AWS Support"),
    "InternalFailure": LaunchFailure("AWS had an internal error", "wait a few minutes"),
    # The last: its message has one of the others.
    "AsgInstanceLaunchFailures": LaunchFailure("instances can't be launched", "see the group's scaling activities"),
}
# Messages of scaling activities, which have no code; the wording of the quota's message varies.
_PHRASES = (
    (re.compile(r"max spot instance count exceeded", re.IGNORECASE), "MaxSpotInstanceCountExceeded"),
    (re.compile(r"(do not|don't) have sufficient .*capacity|no spot capacity", re.IGNORECASE), "UnfulfillableCapacity"),
    (re.compile(r"more vcpu capacity than your current vcpu limit", re.IGNORECASE), "VcpuLimitExceeded"),
    (re.compile(r"not supported in your requested availability zone", re.IGNORECASE), "Unsupported"),
)


def explain_failure(code: str, message: str) -> LaunchFailure:
    """The meaning of an AWS error *code* (may be empty) and *message*; AWS's own message where it is not known."""
    match = next((known for known in LAUNCH_FAILURES if known == code or re.search(rf"\b{known}\b", message)), None)
    match = match or next((known for pattern, known in _PHRASES if pattern.search(message)), None)
    if match is not None:
        return LAUNCH_FAILURES[match]
    text = " ".join(f"{code}: {message}".split()).strip(": ")
    return LaunchFailure(text[:200], "see the group's activity in the EC2 console, Auto Scaling")


def last_launch_failure(aws: Aws, environment: Environment, groups: Collection[str], since: float) -> str | None:
    """Why the newest launch in one of these node groups failed after *since* (Unix seconds); None where none did.

    Raises:
        CloudError: AWS can't be reached, or the credentials are of another account than the environment.
    """
    require_account(aws, environment.cluster_arn)
    for scaling in scaling_groups(aws, environment):
        if scaling.group not in groups:
            continue
        arguments = {"AutoScalingGroupName": scaling.name, "MaxRecords": _ACTIVITIES}
        activities = aws.call("autoscaling", environment.region, "describe_scaling_activities", **arguments)
        found = failure_of_newest(activities["Activities"])
        if found and found[0].timestamp() > since:
            return f"node group {scaling.group}: {found[1].message} ({found[1].remedy})"
    return None


def failure_of_newest(activities: Iterable[Mapping[str, Any]]) -> tuple[datetime, LaunchFailure] | None:
    """When and why the newest launch failed among the *activities* of a group, newest first; None where it did not."""
    launches = (each for each in activities if str(each.get("Description", "")).startswith("Launching"))
    newest = next(launches, None)
    if newest is None or newest["StatusCode"] != "Failed":
        return None
    return newest["StartTime"], explain_failure("", newest.get("StatusMessage") or newest.get("Cause") or "")
