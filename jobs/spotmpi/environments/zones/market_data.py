"""What AWS says about types, zones, prices and quotas: all regions queried at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from spotmpi.aws import machine_types as machines
from spotmpi.aws import placement_scores, prices, quotas
from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import Answer, CallFailure, ConcurrentCalls
from spotmpi.aws.environment_price import SYSTEM_TYPE
from spotmpi.aws.machine_types import MachineType, Zone
from spotmpi.aws.prices import SpotPrice
from spotmpi.aws.quotas import Increase


@dataclass(frozen=True)
class RegionData:
    """The answers of one region; a CallFailure takes the place of an answer where the call failed."""

    region: str
    zones: tuple[Zone, ...] | CallFailure
    machines: Mapping[str, MachineType] | CallFailure
    offered: frozenset[tuple[str, str]] | CallFailure
    spot: Mapping[tuple[str, str], SpotPrice] | CallFailure
    on_demand: Mapping[str, float | CallFailure | None]
    limits: Mapping[str, int | CallFailure]
    running: Counter[str] | CallFailure
    increases: Mapping[str, tuple[Increase, ...] | CallFailure]


@dataclass(frozen=True)
class MarketData:
    """The answers of all regions, and the placement scores by type and zone id."""

    regions: tuple[RegionData, ...]
    scores: Mapping[str, Mapping[str, int] | CallFailure]

    @property
    def failures(self) -> tuple[CallFailure, ...]:
        """Every distinct failure, in the order of the columns."""
        distinct: dict[CallFailure, None] = {}
        for data in self.regions:
            single = (data.zones, data.machines, data.offered, data.spot)
            groups = (data.on_demand, data.limits, {"": data.running}, data.increases)
            distinct |= {each: None for each in single if isinstance(each, CallFailure)}
            distinct |= {each: None for group in groups for each in group.values() if isinstance(each, CallFailure)}
        distinct |= {each: None for each in self.scores.values() if isinstance(each, CallFailure)}
        return tuple(distinct)


@dataclass
class _PendingRegion:
    zones: Answer[tuple[Zone, ...]]
    machines: Answer[dict[str, MachineType]]
    offered: Answer[frozenset[tuple[str, str]]]
    spot: Answer[dict[tuple[str, str], SpotPrice]]
    running: Answer[Counter[str]]
    on_demand: dict[str, Answer[float | None]] = field(default_factory=dict)
    limits: dict[str, Answer[int]] = field(default_factory=dict)
    increases: dict[str, Answer[tuple[Increase, ...]]] = field(default_factory=dict)


def fetch_market_data(aws: Aws, regions: Sequence[str], types: Sequence[str], nodes: int, now: datetime) -> MarketData:
    """Data on *types* in all *regions*, with the placement scores of *nodes* machines.

    CloudError where AWS can't be called at all, as without credentials; a single call may fail.
    """
    with ConcurrentCalls() as calls:
        # The slowest first: scores and price lists have one call for each type.
        scores = {
            each: calls.ask(partial(placement_scores.placement_scores, aws, regions, each, nodes)) for each in types
        }
        pending = {region: _start_calls(calls, aws, region, types, now) for region in regions}
        return MarketData(
            regions=tuple(_region_data(region, answers) for region, answers in pending.items()),
            scores={each: answer.get() for each, answer in scores.items()},
        )


def _start_calls(calls: ConcurrentCalls, aws: Aws, region: str, types: Sequence[str], now: datetime) -> _PendingRegion:
    pending = _PendingRegion(
        zones=calls.ask(partial(machines.zones, aws, region)),
        machines=calls.ask(partial(machines.machine_types, aws, region, types)),
        offered=calls.ask(partial(machines.offered, aws, region, types)),
        spot=calls.ask(partial(prices.spot_prices, aws, region, types, now)),
        running=calls.ask(partial(quotas.running, aws, region)),
    )
    for each in dict.fromkeys([*types, SYSTEM_TYPE]):
        pending.on_demand[each] = calls.ask(partial(prices.on_demand_price, aws, region, each))
    for code in sorted({code for code in map(quotas.quota_code, types) if code}):
        pending.limits[code] = calls.ask(partial(quotas.limit, aws, region, code))
        pending.increases[code] = calls.ask(partial(quotas.pending_increases, aws, region, code))
    return pending


def _region_data(region: str, pending: _PendingRegion) -> RegionData:
    return RegionData(
        region=region,
        zones=pending.zones.get(),
        machines=pending.machines.get(),
        offered=pending.offered.get(),
        spot=pending.spot.get(),
        on_demand={each: answer.get() for each, answer in pending.on_demand.items()},
        limits={code: answer.get() for code, answer in pending.limits.items()},
        running=pending.running.get(),
        increases={code: answer.get() for code, answer in pending.increases.items()},
    )
