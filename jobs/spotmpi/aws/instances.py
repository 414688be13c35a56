"""EC2 instance types, where they are offered, and instances; EC2 describes an instance for an hour after its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.core.names import CAPACITY_BLOCK

SPOT, ON_DEMAND = "spot", "on-demand"
_LIFECYCLES = (SPOT, CAPACITY_BLOCK)  # EC2 names none for on-demand instances
NO_GROUP = "none"


@dataclass(frozen=True)
class InstanceType:
    """What an instance of a type has (`local_disks`: of its own), and what it supports."""

    vcpus: int
    gpus: int
    local_disks: bool
    placement_group: bool
    efa: bool


@dataclass(frozen=True)
class Instance:
    """One instance; None where EC2 returns no value, `placement_group` "none" without one; `host` is its DNS name.

    `launched` is in Unix seconds. A study records all of it.
    """

    id: str
    type: str | None
    zone: str | None
    market: str
    placement_group: str
    host: str | None
    launched: float | None


def instance_types(aws: Aws, region: str, names: Sequence[str]) -> dict[str, InstanceType]:
    """The types of *names* that exist in *region*, by name."""
    # A filter ignores unknown names; as InstanceTypes, one of them would fail the whole call.
    filters = [{"Name": "instance-type", "Values": list(names)}]
    descriptions = aws.pages("ec2", region, "describe_instance_types", "InstanceTypes", Filters=filters)
    return {
        each["InstanceType"]: InstanceType(
            vcpus=each["VCpuInfo"]["DefaultVCpus"],
            # Types with a fraction of a GPU (g6f) count none, and one that the machine sees.
            gpus=sum(gpu.get("LogicalGpuCount", gpu["Count"]) for gpu in each.get("GpuInfo", {}).get("Gpus", [])),
            local_disks=each.get("InstanceStorageSupported", False),
            placement_group="cluster" in each.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
            efa=each["NetworkInfo"].get("EfaSupported", False),
        )
        for each in descriptions
    }


def offerings(aws: Aws, region: str, names: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The pairs (type, zone name) of *region* in which EC2 offers a type."""
    pairs = aws.pages(
        "ec2",
        region,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(names)}],
    )
    return frozenset((each["InstanceType"], each["Location"]) for each in pairs)


def instances(aws: Aws, region: str, ids: Sequence[str]) -> dict[str, Instance]:
    """The instances of *ids* that EC2 still describes, by id; CallError where the call is not permitted."""
    if not ids:
        return {}
    filters = [{"Name": "instance-id", "Values": list(ids)}]
    reservations = aws.pages("ec2", region, "describe_instances", "Reservations", Filters=filters)
    return {each["InstanceId"]: _instance(each) for reservation in reservations for each in reservation["Instances"]}


def instance_id(provider_id: str) -> str | None:
    """The instance in a node's provider id, such as ``aws:///us-east-1a/i-0123``; None for other cloud providers."""
    return provider_id.rpartition("/")[2] if provider_id.startswith("aws:") else None


def _instance(description: Mapping[str, Any]) -> Instance:
    placement, lifecycle = description.get("Placement", {}), description.get("InstanceLifecycle")
    launched = description.get("LaunchTime")
    return Instance(
        id=description["InstanceId"],
        type=description.get("InstanceType"),
        zone=placement.get("AvailabilityZone"),
        market=lifecycle if lifecycle in _LIFECYCLES else ON_DEMAND,
        placement_group=placement.get("GroupName") or NO_GROUP,
        host=description.get("PrivateDnsName"),
        launched=launched.timestamp() if launched else None,
    )
