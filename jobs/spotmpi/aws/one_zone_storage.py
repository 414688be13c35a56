"""Where EFS has One Zone storage: no API tells, so it is a table."""

from __future__ import annotations

from collections.abc import Mapping

SOURCE = "Amazon EFS User Guide, Supported Availability Zones for One Zone file systems, read November 2026"
_ZONE_IDS: Mapping[str, frozenset[str]] = {
    "us-east-1": frozenset({"use1-az1", "use1-az2", "use1-az4", "use1-az5", "use1-az6"}),
    "us-east-2": frozenset({"use2-az1", "use2-az2", "use2-az3"}),
    "us-west-1": frozenset({"usw1-az1", "usw1-az3"}),
    "us-west-2": frozenset({"usw2-az1", "usw2-az2", "usw2-az3", "usw2-az4"}),
}


def one_zone_storage(region: str, zone_id: str) -> bool | None:
    """Whether EFS has One Zone storage in a zone; None for regions that are not in the table."""
    zones = _ZONE_IDS.get(region)
    return None if zones is None else zone_id in zones
