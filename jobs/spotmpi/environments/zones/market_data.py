"""What AWS says about types, zones, prices and quotas: all regions queried at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from spotmpi.aws import instances, prices, quotas
from spotmpi.aws import zones as aws_zones
from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import CallFailure, ConcurrentCalls, PendingCall
from spotmpi.aws.instances import InstanceType
from spotmpi.aws.prices import SpotPrice
from spotmpi.aws.quotas import Increase
from spotmpi.aws.zones import Zone


@dataclass(frozen=True)
class RegionData:
    """The answers of one region; a CallFailure takes the place of an answer where the call failed."""

    region: str
    zones: tuple[Zone, ...] | CallFailure
    machines: Mapping[str, InstanceType] | CallFailure
    offered: frozenset[tuple[str, str]] | CallFailure
    spot: Mapping[tuple[str, str], SpotPrice] | CallFailure
    on_demand: Mapping[str, float | CallFailure | None]
    limits: Mapping[str, int | CallFailure]
    running: Counter[str] | CallFailure
    scores: Mapping[str, Mapping[str, int] | CallFailure]  # placement scores by type and zone id
    increases: Mapping[str, tuple[Increase, ...] | CallFailure]


@dataclass(frozen=True)
class MarketData:
    """The answers of all regions."""

    regions: tuple[RegionData, ...]

    @property
    def failures(self) -> tuple[CallFailure, ...]:
        """Every distinct failure, in the order of the columns."""
        distinct: dict[CallFailure, None] = {}
        for data in self.regions:
            single = (data.zones, data.machines, data.offered, data.spot)
            groups = (data.on_demand, data.limits, {"": data.running}, data.increases, data.scores)
            distinct |= {each: None for each in single if isinstance(each, CallFailure)}
            distinct |= {each: None for group in groups for each in group.values() if isinstance(each, CallFailure)}
        return tuple(distinct)


@dataclass
class _PendingRegion:
    zones: PendingCall[tuple[Zone, ...]]
    machines: PendingCall[dict[str, InstanceType]]
    offered: PendingCall[frozenset[tuple[str, str]]]
    spot: PendingCall[dict[tuple[str, str], SpotPrice]]
    running: PendingCall[Counter[str]]
    scores: dict[str, PendingCall[dict[str, int]]]
    on_demand: dict[str, PendingCall[float | None]] = field(default_factory=dict)
    limits: dict[str, PendingCall[int]] = field(default_factory=dict)
    increases: dict[str, PendingCall[tuple[Increase, ...]]] = field(default_factory=dict)


def fetch_market_data(
    aws: Aws, regions: Sequence[str], types: Sequence[str], nodes: int, system_type: str, now: datetime
) -> MarketData:
    """Data on *types* in all *regions*, with the placement scores of *nodes* machines and the price of system nodes.

    CloudError where AWS can't be called at all, as without credentials; a single call may fail.
    """
    with ConcurrentCalls() as calls:
        pending = {region: _start_calls(calls, aws, region, types, nodes, now) for region in regions}
        for region, answers in pending.items():
            answers.on_demand.setdefault(
                system_type, calls.submit(partial(prices.on_demand_price, aws, region, system_type))
            )
        return MarketData(tuple(_region_data(region, answers) for region, answers in pending.items()))


def _start_calls(
    calls: ConcurrentCalls, aws: Aws, region: str, types: Sequence[str], nodes: int, now: datetime
) -> _PendingRegion:
    # The slowest first: scores and price lists have one call for each type.
    scores = {each: calls.submit(partial(aws_zones.placement_scores, aws, region, each, nodes)) for each in types}
    pending = _PendingRegion(
        zones=calls.submit(partial(aws_zones.zones, aws, region)),
        machines=calls.submit(partial(instances.instance_types, aws, region, types)),
        offered=calls.submit(partial(instances.offerings, aws, region, types)),
        spot=calls.submit(partial(prices.spot_prices, aws, region, types, now)),
        running=calls.submit(partial(quotas.vcpus_in_use, aws, region)),
        scores=scores,
    )
    for each in types:
        pending.on_demand[each] = calls.submit(partial(prices.on_demand_price, aws, region, each))
    for code in sorted({code for code in map(quotas.quota_code, types) if code}):
        pending.limits[code] = calls.submit(partial(quotas.limit, aws, region, code))
        pending.increases[code] = calls.submit(partial(quotas.pending_increases, aws, region, code))
    return pending


def _region_data(region: str, pending: _PendingRegion) -> RegionData:
    return RegionData(
        region=region,
        zones=pending.zones.result(),
        machines=pending.machines.result(),
        offered=pending.offered.result(),
        spot=pending.spot.result(),
        on_demand={each: answer.result() for each, answer in pending.on_demand.items()},
        limits={code: answer.result() for code, answer in pending.limits.items()},
        running=pending.running.result(),
        scores={each: answer.result() for each, answer in pending.scores.items()},
        increases={code: answer.result() for code, answer in pending.increases.items()},
    )
