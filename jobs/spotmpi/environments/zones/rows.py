"""From a survey to one row for each type and zone: pure, unknown is None with its reason beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spotmpi.aws import quotas
from spotmpi.aws.concurrent_calls import CallFailure
from spotmpi.aws.eks_zones import second_zones, taken_by_eks
from spotmpi.aws.environment_price import SYSTEM_TYPE, environment_price
from spotmpi.aws.machine_types import Zone
from spotmpi.aws.one_zone_storage import one_zone_storage
from spotmpi.environments.zones.survey import RegionFacts, Survey

Given = TypeVar("Given")


@dataclass(frozen=True)
class Row:
    """One type in one zone. Prices in $/h for a node, quotas in vCPUs; None is unknown, `gaps` tells why by field.

    `needed` is what all nodes take, `short` what the quota lacks beside what runs, `nodes_today` how many nodes the
    quota allows now (capacity is never promised). `eks` says whether EKS takes the zone, `second_zones` which zones it
    takes besides, best first. `lost` says why the first row is better; the first row has none.
    """

    type: str
    region: str
    zone: str
    zone_id: str | None
    offered: bool | None
    gpus: int | None
    spot: float | None
    spot_low: float | None
    spot_high: float | None
    score: int | None
    on_demand: float | None
    saving: float | None
    quota_code: str | None
    quota: int | None
    running: int | None
    needed: int | None
    short: int | None
    nodes_today: int | None
    placement_group: bool | None
    efa: bool | None
    one_zone: bool | None
    eks: bool | None
    second_zones: tuple[str, ...] | None
    idle: float
    busy: float | None
    lost: str = ""
    gaps: dict[str, str] = field(default_factory=dict)


def rows_of(survey: Survey, types: Sequence[str], nodes: int) -> list[Row]:
    """A row for each type and zone of the survey, in the order of regions, zones and types."""
    return [
        _row(survey, facts, zone, machine, nodes)
        for facts in survey.regions
        for zone in _zones(facts)
        for machine in types
    ]


def _zones(facts: RegionFacts) -> Iterator[Zone]:
    if not isinstance(facts.zones, CallFailure):
        yield from facts.zones
    elif not isinstance(facts.offered, CallFailure):
        yield from (Zone(name, "") for name in sorted({zone for _, zone in facts.offered}))


def _row(survey: Survey, facts: RegionFacts, zone: Zone, machine: str, nodes: int) -> Row:
    cells = _Cells()
    types = cells.known("machine", facts.machines)
    kind = types.get(machine) if types is not None else None
    offered = cells.known("offered", facts.offered)
    spots = cells.known("spot", facts.spot)
    spot = spots.get((machine, zone.name)) if spots is not None else None
    price = spot.now if spot else None
    on_demand = cells.known("on_demand", facts.on_demand[machine])
    scores = cells.known("score", survey.scores[machine])
    system = facts.on_demand[SYSTEM_TYPE]
    cost = environment_price(nodes, price, None if isinstance(system, CallFailure) else system)
    return Row(
        type=machine,
        region=facts.region,
        zone=zone.name,
        zone_id=zone.id or None,
        offered=None if offered is None else (machine, zone.name) in offered,
        gpus=kind.gpus if kind else None,
        spot=price,
        spot_low=spot.low if spot else None,
        spot_high=spot.high if spot else None,
        score=scores.get(zone.id) if scores is not None else None,
        on_demand=on_demand,
        saving=1 - price / on_demand if price is not None and on_demand else None,
        placement_group=kind.placement_group if kind else None,
        efa=kind.efa if kind else None,
        one_zone=one_zone_storage(facts.region, zone.id) if zone.id else None,
        eks=taken_by_eks(zone.id) if zone.id else None,
        second_zones=None if isinstance(facts.zones, CallFailure) else second_zones(facts.zones, zone.name),
        idle=cost.idle,
        busy=cost.busy,
        **_quota(cells, facts, machine, kind.vcpus if kind else None, nodes),
        gaps=cells.gaps,
    )


class _Cells:
    def __init__(self) -> None:
        self.gaps: dict[str, str] = {}

    def known(self, name: str, value: Given | CallFailure) -> Given | None:
        if isinstance(value, CallFailure):
            self.gaps[name] = value.reason
            return None
        return value


def _quota(cells: _Cells, facts: RegionFacts, machine: str, vcpus: int | None, nodes: int) -> dict[str, Any]:
    code = quotas.quota_code(machine)
    limit = cells.known("quota", facts.limits[code]) if code else None
    counted = cells.known("running", facts.running)
    used = counted[code] if counted is not None and code else None
    needed = vcpus * nodes if vcpus else None
    free = max(0, limit - used) if limit is not None and used is not None else None
    return {
        "quota_code": code,
        "quota": limit,
        "running": used,
        "needed": needed,
        "short": max(0, needed - free) if needed is not None and free is not None else None,
        "nodes_today": free // vcpus if free is not None and vcpus else None,
    }
