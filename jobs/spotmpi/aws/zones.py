"""Regions and Availability Zones of an account, what EKS and EFS support in them, and spot placement scores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotmpi.aws.account import ANY_REGION, Aws
from spotmpi.aws.errors import NO_ANSWER, CallError, RegionNotEnabled

EKS_SOURCE = "Amazon EKS User Guide, networking requirements for VPC and subnets, read November 2026"
STORAGE_SOURCE = "Amazon EFS User Guide, Supported Availability Zones for One Zone file systems, read November 2026"
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")  # as in infra/settings.py
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso", "eusc-")  # of regions, as in infra/checks.py
# By zone id: a zone's letter means a different place in each account.
_NOT_SUPPORTED_BY_EKS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
# No API returns this.
_ONE_ZONE_STORAGE: Mapping[str, frozenset[str]] = {
    "us-east-1": frozenset({"use1-az1", "use1-az2", "use1-az4", "use1-az5", "use1-az6"}),
    "us-east-2": frozenset({"use2-az1", "use2-az2", "use2-az3"}),
    "us-west-1": frozenset({"usw1-az1", "usw1-az3"}),
    "us-west-2": frozenset({"usw2-az1", "usw2-az2", "usw2-az3", "usw2-az4"}),
}


@dataclass(frozen=True)
class Zone:
    """One Availability Zone: its name in this account and its id, which is the same in all accounts."""

    name: str
    id: str


def region_problem(name: str) -> str | None:
    """Why no environment can be in a region, as the end of a message; None where that is not known.

    AWS takes calls to what is no region for those of wrong credentials.
    """
    if name.startswith(_OTHER_PARTITIONS):
        return "of China, GovCloud or the like, whose ARNs and prices are others; use a region such as us-east-1"
    return None if _REGION.fullmatch(name) else "not an AWS region; write it like us-east-1"


def regions(aws: Aws) -> dict[str, bool]:
    """Every AWS region's name, and whether this account has it enabled."""
    arguments = {"AllRegions": True}
    try:
        response = aws.call("ec2", aws.region or ANY_REGION, "describe_regions", **arguments)
    except (CallError, RegionNotEnabled) as error:
        if isinstance(error, CallError) and error.short != NO_ANSWER:  # a region that does not exist has no host
            raise
        response = aws.call("ec2", ANY_REGION, "describe_regions", **arguments)
    return {each["RegionName"]: each.get("OptInStatus") != "not-opted-in" for each in response["Regions"]}


def zones(aws: Aws, region: str) -> tuple[Zone, ...]:
    """The Availability Zones of *region* that this account may use, by name; no Local or Wavelength Zones."""
    filters = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    response = aws.call("ec2", region, "describe_availability_zones", Filters=filters)["AvailabilityZones"]
    return tuple(sorted((Zone(each["ZoneName"], each["ZoneId"]) for each in response), key=lambda zone: zone.name))


def eks_supports(zone_id: str) -> bool:
    """Whether EKS accepts subnets in the zone with that id."""
    return zone_id not in _NOT_SUPPORTED_BY_EKS


def default_second_zone(region: str, zone: str) -> str:
    """The second zone of a stack that names none, as in infra/settings.py: zone a, or b next to a; it may not exist."""
    return region + ("b" if zone.endswith("a") else "a")


def second_zones(zones: Sequence[Zone], zone: str) -> tuple[str, ...]:
    """The names of the zones other than *zone* that EKS supports, in the order of their ids."""
    others = [each for each in zones if each.name != zone and eks_supports(each.id)]
    return tuple(each.name for each in sorted(others, key=lambda each: each.id))


def has_one_zone_storage(region: str, zone_id: str) -> bool | None:
    """Whether EFS offers One Zone storage in a zone; None for regions that are not in the table."""
    zone_ids = _ONE_ZONE_STORAGE.get(region)
    return None if zone_ids is None else zone_id in zone_ids


def placement_scores(aws: Aws, region: str, machine: str, nodes: int) -> dict[str, int]:
    """Spot placement scores (1 to 10) by zone id for *nodes* machines of one type in a single zone of *region*.

    One call for each region, since AWS answers with the ten best zones of a request only, whatever the number of its
    regions (EC2 API Reference, GetSpotPlacementScoresResult), and no region has more.
    """
    scores = aws.pages(
        "ec2",
        region,
        "get_spot_placement_scores",
        "SpotPlacementScores",
        InstanceTypes=[machine],
        TargetCapacity=nodes,
        SingleAvailabilityZone=True,
        RegionNames=[region],
    )
    return {each["AvailabilityZoneId"]: each["Score"] for each in scores if "AvailabilityZoneId" in each}
