"""Where EKS takes the subnets of a cluster, by zone id: a zone's letter means another place in each account."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.aws.machine_types import Zone

SOURCE = "Amazon EKS User Guide, networking requirements for VPC and subnets, read November 2026"
_NOT_TAKEN = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})


def taken_by_eks(zone_id: str) -> bool:
    """Whether a cluster may have subnets in the zone of that id."""
    return zone_id not in _NOT_TAKEN


def default_second(region: str, zone: str) -> str:
    """The second zone where a stack names none, as infra/settings.py has it: zone a, or b beside a; may not exist."""
    return region + ("b" if zone.endswith("a") else "a")


def second_zones(zones: Sequence[Zone], zone: str) -> tuple[str, ...]:
    """The names of the zones that EKS takes beside *zone*, in the order of their ids."""
    others = [each for each in zones if each.name != zone and taken_by_eks(each.id)]
    return tuple(each.name for each in sorted(others, key=lambda each: each.id))
