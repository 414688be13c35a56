"""What AWS says about types, zones, prices and quotas: all regions queried at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

from spotmpi.aws import instances, kubernetes_versions, prices, quotas
from spotmpi.aws import zones as aws_zones
from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import CallFailure, ConcurrentCalls
from spotmpi.aws.instances import InstanceType
from spotmpi.aws.kubernetes_versions import KubernetesVersion
from spotmpi.aws.prices import Design, SpotPrice
from spotmpi.aws.quotas import Increase
from spotmpi.aws.zones import Zone


@dataclass(frozen=True)
class RegionData:
    """The answers of one region; a CallFailure takes the place of an answer where the call failed."""

    region: str
    zones: tuple[Zone, ...] | CallFailure
    machines: Mapping[str, InstanceType] | CallFailure
    offered: frozenset[tuple[str, str]] | CallFailure  # types with names of zones
    spot: Mapping[tuple[str, str], SpotPrice] | CallFailure  # by type and name of the zone
    on_demand: Mapping[str, float | CallFailure | None]  # US dollars per hour by type
    limits: Mapping[str, int | CallFailure]
    running: Counter[str] | CallFailure
    scores: Mapping[str, Mapping[str, int] | CallFailure]  # placement scores by type and zone id
    increases: Mapping[str, tuple[Increase, ...] | CallFailure]
    kubernetes: Mapping[str, KubernetesVersion] | CallFailure  # the environment's version, if EKS offers it


@dataclass(frozen=True)
class MarketData:
    """The answers of all regions."""

    regions: tuple[RegionData, ...]

    @property
    def failures(self) -> tuple[CallFailure, ...]:
        """Every distinct failure, in the order of the columns."""
        distinct: dict[CallFailure, None] = {}
        for data in self.regions:
            single = (data.zones, data.machines, data.offered, data.spot, data.kubernetes)
            groups = (data.on_demand, data.limits, {"": data.running}, data.increases, data.scores)
            distinct |= {each: None for each in single if isinstance(each, CallFailure)}
            distinct |= {each: None for group in groups for each in group.values() if isinstance(each, CallFailure)}
        return tuple(distinct)


class MarketQuery(NamedTuple):
    """What AWS is asked about each region, at the time *now*."""

    types: Sequence[str]
    nodes: int  # for placement scores
    design: Design  # of the environment: the price of its system nodes and the support of its version are asked as well
    now: datetime


def fetch_market_data(aws: Aws, regions: Sequence[str], query: MarketQuery) -> MarketData:
    """The answers of all *regions*.

    CloudError where AWS can't be called at all, as without credentials; a single call may fail.
    """
    with ConcurrentCalls() as calls:
        answers = [_ask(calls, aws, region, query) for region in regions]
        return MarketData(tuple(answer() for answer in answers))


def _ask(calls: ConcurrentCalls, aws: Aws, region: str, query: MarketQuery) -> Callable[[], RegionData]:
    """Start all calls to a region; the function that waits for their answers."""
    types = query.types
    # The slowest first: scores and price lists have one call for each type.
    scores = {each: calls.submit(partial(aws_zones.placement_scores, aws, region, each, query.nodes)) for each in types}
    zones = calls.submit(partial(aws_zones.zones, aws, region))
    machines = calls.submit(partial(instances.instance_types, aws, region, types))
    offered = calls.submit(partial(instances.offerings, aws, region, types))
    spot = calls.submit(partial(prices.spot_prices, aws, region, types, query.now))
    running = calls.submit(partial(quotas.vcpus_in_use, aws, region))
    kubernetes = calls.submit(partial(kubernetes_versions.offered, aws, region, [query.design.kubernetes]))
    priced = dict.fromkeys((*types, query.design.system_type))
    on_demand = {each: calls.submit(partial(prices.on_demand_price, aws, region, each)) for each in priced}
    codes = sorted({code for code in map(quotas.quota_code, types) if code})
    limits = {code: calls.submit(partial(quotas.limit, aws, region, code)) for code in codes}
    increases = {code: calls.submit(partial(quotas.pending_increases, aws, region, code)) for code in codes}
    return lambda: RegionData(
        region=region,
        zones=zones.result(),
        machines=machines.result(),
        offered=offered.result(),
        spot=spot.result(),
        on_demand={each: answer.result() for each, answer in on_demand.items()},
        limits={code: answer.result() for code, answer in limits.items()},
        running=running.result(),
        scores={each: answer.result() for each, answer in scores.items()},
        increases={code: answer.result() for code, answer in increases.items()},
        kubernetes=kubernetes.result(),
    )
