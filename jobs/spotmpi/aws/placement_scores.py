"""How likely a spot request is to be met, zone by zone: 1 to 10, as AWS sees it at the moment."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.aws.account import Aws
from spotmpi.aws.machine_types import ANY_REGION


def placement_scores(aws: Aws, regions: Sequence[str], machine: str, nodes: int) -> dict[str, int]:
    """Scores by zone id for *nodes* machines of one type in a single zone.

    One call for all regions: AWS counts different questions per day.
    """
    found = aws.pages(
        "ec2",
        aws.region or ANY_REGION,
        "get_spot_placement_scores",
        "SpotPlacementScores",
        InstanceTypes=[machine],
        TargetCapacity=nodes,
        SingleAvailabilityZone=True,
        RegionNames=list(regions),
    )
    return {each["AvailabilityZoneId"]: each["Score"] for each in found if "AvailabilityZoneId" in each}
