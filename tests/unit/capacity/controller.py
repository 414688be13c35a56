"""A stand-in for the controller of a run: it makes a job's decisions one by one on a recorded market."""

from __future__ import annotations

import numpy as np

from spotmpi.capacity.chains import Indices
from spotmpi.capacity.choice import Moment
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.placement import (
    CapacityPool,
    Decision,
    DecisionClock,
    Keep,
    Observation,
    Offer,
    Placement,
    State,
    Wait,
)
from spotmpi.capacity.policy import decide
from spotmpi.capacity.simulation import Outcome, simulate
from spotmpi.capacity.values import NONE, ON_DEMAND, SPOT


def replay(job: Job, market: Market, start: int) -> tuple[list[tuple[float, Decision]], Outcome]:
    """Decisions, with the seconds since the start, in the window that begins at the tick *start*, and their outcome."""
    controller = _Controller(job, market, start)
    outcome = simulate(job, market, np.array([start]), controller)
    return controller.decisions, outcome


class _Controller:
    """It records offers and asks for decisions, as the controller of a run does."""

    def __init__(self, job: Job, market: Market, start: int) -> None:
        self.job, self.market, self.start = job, market, start
        self.decisions: list[tuple[float, Decision]] = []
        self.history: list[Observation] = []
        for tick in range(start):
            self._record(tick)

    def __call__(self, moment: Moment) -> Indices:
        tick = self.start + round(moment.elapsed / self.market.step)
        here = self._placement(int(moment.mode[0]))
        state = State(self.job, here, float(moment.work[0]), float(moment.starting[0]), float(moment.spent[0]))
        if state.work <= 0:
            return np.array([NONE])
        clock = DecisionClock(moment.elapsed, self.market.step)
        decision = decide(state, self._offers(tick), self.history, clock)
        self._record(tick)
        self.decisions.append((moment.elapsed, decision))
        if isinstance(decision, Keep):
            return moment.mode
        return np.array([NONE if isinstance(decision, Wait) else self._mode(decision.placement)])

    def _offers(self, tick: int) -> list[Offer]:
        market = self.market
        spot = [
            Offer(
                pool.zone, "spot", pool.instance_type, float(market.price[row, tick]), int(market.available[row, tick])
            )
            for row, pool in enumerate(market.pools)
        ]
        first = market.pools[0]
        return [*spot, Offer(first.zone, "on-demand", first.instance_type, market.on_demand)]

    def _record(self, tick: int) -> None:
        """Record what changed."""
        at = (tick - self.start) * self.market.step
        last = {each.offer.pool: each.offer for each in self.history[-20 * len(self.market.pools) :]}
        changed = [offer for offer in self._offers(tick)[:-1] if last.get(offer.pool) != offer]
        self.history += [Observation(at, offer) for offer in changed]

    def _placement(self, mode: int) -> Placement | None:
        if mode == NONE:
            return None
        sizes, market = self.job.sizes, self.market
        if mode == ON_DEMAND:
            pool = market.pools[0]
            return Placement(pool.zone, "on-demand", pool.instance_type, sizes[self.job.on_demand_size])
        pool = market.pools[(mode - SPOT) // len(sizes)]
        return Placement(pool.zone, "spot", pool.instance_type, sizes[(mode - SPOT) % len(sizes)])

    def _mode(self, placement: Placement) -> int:
        if placement.market == "on-demand":
            return ON_DEMAND
        row = self.market.pools.index(CapacityPool(placement.zone, placement.instance_type))
        return SPOT + row * len(self.job.sizes) + self.job.sizes.index(placement.nodes)
