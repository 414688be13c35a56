"""Everything a choice of zone rests on, asked of all regions at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from spotmpi.aws import machine_types as machines
from spotmpi.aws import placement_scores as scores
from spotmpi.aws import prices, quotas
from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import Answer, CallFailure, ConcurrentCalls
from spotmpi.aws.environment_price import SYSTEM_TYPE
from spotmpi.aws.machine_types import MachineType, Zone
from spotmpi.aws.prices import SpotPrice
from spotmpi.aws.quotas import Increase


@dataclass(frozen=True)
class RegionFacts:
    """What one region answered; a CallFailure stands where a call failed."""

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
class Survey:
    """The answers of all regions, and the placement scores by type and zone id."""

    regions: tuple[RegionFacts, ...]
    scores: Mapping[str, Mapping[str, int] | CallFailure]

    @property
    def gaps(self) -> tuple[CallFailure, ...]:
        """Every different thing that could not be learnt, in the order of the columns."""
        found: dict[CallFailure, None] = {}
        for facts in self.regions:
            single = (facts.zones, facts.machines, facts.offered, facts.spot)
            groups = (facts.on_demand, facts.limits, {"": facts.running}, facts.increases)
            found |= {each: None for each in single if isinstance(each, CallFailure)}
            found |= {each: None for group in groups for each in group.values() if isinstance(each, CallFailure)}
        found |= {each: None for each in self.scores.values() if isinstance(each, CallFailure)}
        return tuple(found)


@dataclass
class _Asked:
    zones: Answer[tuple[Zone, ...]]
    machines: Answer[dict[str, MachineType]]
    offered: Answer[frozenset[tuple[str, str]]]
    spot: Answer[dict[tuple[str, str], SpotPrice]]
    running: Answer[Counter[str]]
    on_demand: dict[str, Answer[float | None]] = field(default_factory=dict)
    limits: dict[str, Answer[int]] = field(default_factory=dict)
    increases: dict[str, Answer[tuple[Increase, ...]]] = field(default_factory=dict)


def survey(aws: Aws, regions: Sequence[str], types: Sequence[str], nodes: int, now: datetime) -> Survey:
    """Asks for *types* in all *regions*, and for the scores of *nodes* machines; CloudError if nothing can be asked."""
    with ConcurrentCalls() as questions:
        # The slowest first: scores and price lists have one call for each type.
        asked_scores = {
            each: questions.ask(partial(scores.placement_scores, aws, regions, each, nodes)) for each in types
        }
        asked = {region: _ask(questions, aws, region, types, now) for region in regions}
        return Survey(
            regions=tuple(_facts(region, answers) for region, answers in asked.items()),
            scores={each: answer.get() for each, answer in asked_scores.items()},
        )


def _ask(questions: ConcurrentCalls, aws: Aws, region: str, types: Sequence[str], now: datetime) -> _Asked:
    asked = _Asked(
        zones=questions.ask(partial(machines.zones, aws, region)),
        machines=questions.ask(partial(machines.machine_types, aws, region, types)),
        offered=questions.ask(partial(machines.offered, aws, region, types)),
        spot=questions.ask(partial(prices.spot_prices, aws, region, types, now)),
        running=questions.ask(partial(quotas.running, aws, region)),
    )
    for each in dict.fromkeys([*types, SYSTEM_TYPE]):
        asked.on_demand[each] = questions.ask(partial(prices.on_demand_price, aws, region, each))
    for code in sorted({code for code in map(quotas.quota_code, types) if code}):
        asked.limits[code] = questions.ask(partial(quotas.limit, aws, region, code))
        asked.increases[code] = questions.ask(partial(quotas.pending_increases, aws, region, code))
    return asked


def _facts(region: str, asked: _Asked) -> RegionFacts:
    return RegionFacts(
        region=region,
        zones=asked.zones.get(),
        machines=asked.machines.get(),
        offered=asked.offered.get(),
        spot=asked.spot.get(),
        on_demand={each: answer.get() for each, answer in asked.on_demand.items()},
        limits={code: answer.get() for code, answer in asked.limits.items()},
        running=asked.running.get(),
        increases={code: answer.get() for code, answer in asked.increases.items()},
    )
