"""Regions, zones and machine types: what there is, and where it is offered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotmpi.aws.account import Aws

ANY_REGION = "us-east-1"  # enabled in every account, so it can be asked about the others


@dataclass(frozen=True)
class Zone:
    """One Availability Zone: its name in this account and its id, which is the same in all accounts."""

    name: str
    id: str


@dataclass(frozen=True)
class MachineType:
    """What one machine of a type has, and what it supports."""

    name: str
    vcpus: int
    gpus: int
    spot: bool
    placement_group: bool
    efa: bool


def regions(aws: Aws) -> dict[str, bool]:
    """Every AWS region's name, and whether this account has it enabled."""
    answer = aws.call("ec2", aws.region or ANY_REGION, "describe_regions", AllRegions=True)
    return {each["RegionName"]: each.get("OptInStatus") != "not-opted-in" for each in answer["Regions"]}


def zones(aws: Aws, region: str) -> tuple[Zone, ...]:
    """The Availability Zones of *region* that this account may use, by name; no Local or Wavelength Zones."""
    only = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    found = aws.call("ec2", region, "describe_availability_zones", Filters=only)["AvailabilityZones"]
    return tuple(sorted((Zone(each["ZoneName"], each["ZoneId"]) for each in found), key=lambda zone: zone.name))


def machine_types(aws: Aws, region: str, names: Sequence[str]) -> dict[str, MachineType]:
    """The types of *names* that exist in *region*, by name."""
    # A filter leaves unknown names out; naming them as types would fail the whole call for one of them.
    wanted = [{"Name": "instance-type", "Values": list(names)}]
    found = aws.pages("ec2", region, "describe_instance_types", "InstanceTypes", Filters=wanted)
    return {
        each["InstanceType"]: MachineType(
            name=each["InstanceType"],
            vcpus=each["VCpuInfo"]["DefaultVCpus"],
            gpus=sum(gpu["Count"] for gpu in each.get("GpuInfo", {}).get("Gpus", [])),
            spot="spot" in each.get("SupportedUsageClasses", ["spot"]),
            placement_group="cluster" in each.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
            efa=each["NetworkInfo"].get("EfaSupported", False),
        )
        for each in found
    }


def offered(aws: Aws, region: str, names: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The pairs (type, zone name) of *region* in which EC2 offers a type."""
    wanted = [{"Name": "instance-type", "Values": list(names)}]
    found = aws.pages(
        "ec2",
        region,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=wanted,
    )
    return frozenset((each["InstanceType"], each["Location"]) for each in found)
