"""What still bills, or holds what bills, once an environment is taken down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobs.cloud.aws import Aws
from jobs.cloud.faults import CallFailed
from jobs.cloud.remains import CNI_MACHINE, INTERFACES, KINDS, NETWORKS, TAG, Trace, key_lives


@dataclass(frozen=True)
class Left:
    """One thing that is left, and the command that deletes it."""

    what: str
    id: str
    command: str


def still_billed(aws: Aws, trace: Trace) -> tuple[Left, ...]:
    """Everything of an environment that is still there: by kind, then whatever else carries its tag."""
    found = []
    for kind in KINDS:
        for id in kind.find(aws, trace):
            found.append(Left(kind.what, id, kind.command.format(id=id) + f" --region {trace.region}"))
    known = {each.id for each in found}
    for arn in _tagged(aws, trace):
        id = arn.rpartition("/")[2] if "/" in arn else arn.rpartition(":")[2]
        if not any(arn.endswith(each) for each in known) and _lives(aws, trace.region, arn, id):
            found.append(Left("tagged", arn, "see the console of that service"))
    return tuple(found)


def sweep_interfaces(aws: Aws, trace: Trace) -> list[str]:
    """Delete the unattached interfaces that the CNI left in the environment's network; gives their ids."""
    tagged = [{"Name": f"tag:{TAG}", "Values": [trace.name]}]
    vpcs = {each["VpcId"] for each in aws.pages("ec2", trace.region, "describe_vpcs", "Vpcs", Filters=tagged)}
    networks = sorted(vpcs | trace.of(NETWORKS))
    if not networks:
        return []
    unused = [
        {"Name": "vpc-id", "Values": networks},
        {"Name": "status", "Values": ["available"]},
        {"Name": "tag-key", "Values": [CNI_MACHINE]},
    ]
    swept = []
    for each in aws.pages("ec2", trace.region, "describe_network_interfaces", "NetworkInterfaces", Filters=unused):
        try:
            aws.call("ec2", trace.region, "delete_network_interface", NetworkInterfaceId=each["NetworkInterfaceId"])
        except CallFailed as error:
            if error.code != "InvalidNetworkInterfaceID.NotFound":
                raise
        swept.append(each["NetworkInterfaceId"])
    return swept


def interfaces_in_use(aws: Aws, trace: Trace) -> list[tuple[str, str]]:
    """The network interfaces that the environment has now, to be written down before it goes."""
    (kind,) = [kind for kind in KINDS if kind.what == INTERFACES]
    return [(INTERFACES, id) for id in kind.find(aws, trace)]


def _tagged(aws: Aws, trace: Trace) -> list[str]:
    only = [{"Key": TAG, "Values": [trace.name]}]
    found = aws.pages(
        "resourcegroupstaggingapi", trace.region, "get_resources", "ResourceTagMappingList", TagFilters=only
    )
    return sorted(each["ResourceARN"] for each in found)


def _lives(aws: Aws, region: str, arn: str, id: str) -> bool:
    """Whether a tagged thing is more than a memory: AWS tells of some kinds for an hour after their end."""
    for part, lives in _MEMORIES.items():
        if part in arn:
            return lives(aws, region, id)
    return True


def _machine_lives(aws: Aws, region: str, id: str) -> bool:
    only = [{"Name": "instance-id", "Values": [id]}]
    found = aws.pages("ec2", region, "describe_instances", "Reservations", Filters=only)
    states = {each["State"]["Name"] for some in found for each in some["Instances"]}
    return bool(states - {"terminated", "shutting-down"})


def _gateway_lives(aws: Aws, region: str, id: str) -> bool:
    only = [{"Name": "nat-gateway-id", "Values": [id]}]
    found = aws.pages("ec2", region, "describe_nat_gateways", "NatGateways", Filters=only)
    return any(each["State"] not in ("deleted", "deleting") for each in found)


_MEMORIES: Mapping[str, Callable[[Aws, str, str], bool]] = {
    ":instance/": _machine_lives,
    ":natgateway/": _gateway_lives,
    ":key/": key_lives,
}
