"""Why AWS starts no machine, in words: its codes, and what to do about each."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """What a code means, and the remedy."""

    words: str
    remedy: str


_ELSEWHERE = "`spotmpi zones` shows zones and types; another group as a fallback helps too"
REASONS: dict[str, Reason] = {
    "InsufficientInstanceCapacity": Reason("AWS has no machine of this type left in the zone", _ELSEWHERE),
    "UnfulfillableCapacity": Reason("AWS has no spot machine of this type left in the zone", _ELSEWHERE),
    "SpotMaxPriceTooLow": Reason("the spot price is above the on-demand price", _ELSEWHERE),
    "MaxSpotInstanceCountExceeded": Reason(
        "the spot quota of the account is used up", "`spotmpi zones --request-quota` asks for more"
    ),
    "VcpuLimitExceeded": Reason(
        "the on-demand quota of the account is used up", "ask for more in Service Quotas, service ec2"
    ),
    "InstanceLimitExceeded": Reason("the account may have no more machines", "ask for more in Service Quotas"),
    "InsufficientFreeAddresses": Reason("the subnet has no address left", "set a bigger `network.cidr`"),
    "InsufficientFreeAddressesInSubnet": Reason("the subnet has no address left", "set a bigger `network.cidr`"),
    "AccessDenied": Reason("EKS may not do what it has to", "run `pulumi up`: it restores the roles"),
    "AsgInstanceLaunchFailures": Reason("machines can't be started", "see the group's scaling activities"),
    "NodeCreationFailure": Reason(
        "machines start, but don't join the cluster", "check their way to the API: routes, NAT, endpoint"
    ),
    "IamNodeRoleNotFound": Reason("the role of the nodes is gone", "run `pulumi up`"),
    "IamInstanceProfileNotFound": Reason("the profile of the nodes is gone", "run `pulumi up`"),
    "AutoScalingGroupNotFound": Reason(
        "the Auto Scaling group was deleted by hand", "`pulumi refresh`, then `pulumi up`"
    ),
    "Ec2LaunchTemplateNotFound": Reason(
        "the launch template was deleted by hand", "`pulumi refresh`, then `pulumi up`"
    ),
    "Ec2LaunchTemplateVersionMismatch": Reason(
        "somebody changed the launch template by hand", "run `pulumi up`; don't edit it"
    ),
    "Ec2SecurityGroupNotFound": Reason("the cluster's security group is gone", "rebuild the environment"),
    "Ec2SubnetNotFound": Reason("the subnet of the nodes is gone", "rebuild the environment"),
    "Unsupported": Reason("EC2 doesn't offer this type in the zone", _ELSEWHERE),
    "InternalFailure": Reason("AWS had a fault of its own", "wait some minutes"),
}
# What scaling activities say where there is no code; the quota's message comes in several wordings.
_PHRASES = (
    (re.compile(r"max spot instance count exceeded", re.IGNORECASE), "MaxSpotInstanceCountExceeded"),
    (re.compile(r"(do not|don't) have sufficient .*capacity|no spot capacity", re.IGNORECASE), "UnfulfillableCapacity"),
    (re.compile(r"more vcpu capacity than your current vcpu limit", re.IGNORECASE), "VcpuLimitExceeded"),
    (re.compile(r"not supported in your requested availability zone", re.IGNORECASE), "Unsupported"),
)


def reason_of(code: str, message: str) -> Reason:
    """What AWS means by *code* (or nothing) and *message*; its own words where we know none for it."""
    named = next((known for known in REASONS if known == code or re.search(rf"\b{known}\b", message)), None)
    named = named or next((known for pattern, known in _PHRASES if pattern.search(message)), None)
    if named is not None:
        return REASONS[named]
    words = " ".join(f"{code}: {message}".split()).strip(": ")
    return Reason(words[:200], "see the group in the EC2 console, Auto Scaling, Activity")
