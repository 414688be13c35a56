"""The rows of a comparison, one for each type and zone: pure functions of the market data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spotmpi.aws import quotas
from spotmpi.aws.concurrent_calls import CallFailure
from spotmpi.aws.prices import LIST_REGION, Design, EnvironmentPrice, environment_price
from spotmpi.aws.zones import Zone, eks_supports, has_one_zone_storage, second_zones
from spotmpi.environments.zones.market_data import MarketData, RegionData

Value = TypeVar("Value")


@dataclass(frozen=True)
class Row:
    """One type in one zone. Prices in $/h per node, quotas in vCPUs; None means unknown: `unknown` has the reasons.

    `needed` is the quota that all nodes take, `short` how much of it is missing beside what already runs, `nodes_today`
    the number of nodes that the quota allows now (capacity is never guaranteed). `eks` is whether EKS supports the
    zone, `second_zones` are the other zones of the region that it supports, best first. `extended_support` is the
    environment's Kubernetes version where EKS bills its control plane for extended support. `reason` is why the first
    row ranks higher; empty for the first row.
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
    idle: float | None
    busy: float | None
    extended_support: str | None
    reason: str = ""
    unknown: dict[str, str] = field(default_factory=dict)


def comparison_rows(market: MarketData, types: Sequence[str], nodes: int, design: Design) -> list[Row]:
    """A row for each type and zone, in the order of regions, zones and types."""
    return [
        _row(data, zone, machine, nodes, design)
        for data in market.regions
        for zone in _zones(data)
        for machine in types
    ]


def _zones(data: RegionData) -> Iterator[Zone]:
    if not isinstance(data.zones, CallFailure):
        yield from data.zones
    elif not isinstance(data.offered, CallFailure):
        yield from (Zone(name, "") for name in sorted({zone for _, zone in data.offered}))


def _row(data: RegionData, zone: Zone, machine: str, nodes: int, design: Design) -> Row:
    cells = _Cells()
    types = cells.value_of("machine", data.machines)
    kind = types.get(machine) if types is not None else None
    offered = cells.value_of("offered", data.offered)
    spots = cells.value_of("spot", data.spot)
    spot = spots.get((machine, zone.name)) if spots is not None else None
    price = spot.now if spot else None
    on_demand = cells.value_of("on_demand", data.on_demand[machine])
    scores = cells.value_of("score", data.scores[machine])
    system = data.on_demand[design.system_type]
    throughput = design.throughput(kind.gpus, kind.local_disks) if kind else design.throughput(0, False)
    known = None if isinstance(system, CallFailure) else system
    extended_support = _in_extended_support(data, design)
    cost = environment_price(nodes, price, known, design, throughput, extended_support is not None)
    if known is None and data.region != LIST_REGION:
        cost = EnvironmentPrice(None, None)
    if cost.idle is None:
        cells.unknown["idle"] = system.reason if isinstance(system, CallFailure) else "no list price"
    return Row(
        type=machine,
        region=data.region,
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
        one_zone=has_one_zone_storage(data.region, zone.id) if zone.id else None,
        eks=eks_supports(zone.id) if zone.id else None,
        second_zones=None if isinstance(data.zones, CallFailure) else second_zones(data.zones, zone.name),
        idle=cost.idle,
        busy=cost.busy,
        extended_support=extended_support,
        **_quota(cells, data, machine, kind.vcpus if kind else None, nodes),
        unknown=cells.unknown,
    )


def _in_extended_support(data: RegionData, design: Design) -> str | None:
    """The version if EKS says that it has left standard support; not where the call failed, which is reported."""
    offered = None if isinstance(data.kubernetes, CallFailure) else data.kubernetes.get(design.kubernetes)
    return None if offered is None or offered.in_standard_support else design.kubernetes


class _Cells:
    """Unwraps answers, and collects the reasons of those that failed in `unknown`."""

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}

    def value_of(self, name: str, value: Value | CallFailure) -> Value | None:
        if isinstance(value, CallFailure):
            self.unknown[name] = value.reason
            return None
        return value


def _quota(cells: _Cells, data: RegionData, machine: str, vcpus: int | None, nodes: int) -> dict[str, Any]:
    code = quotas.quota_code(machine)
    limit = cells.value_of("quota", data.limits[code]) if code else None
    counted = cells.value_of("running", data.running)
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
