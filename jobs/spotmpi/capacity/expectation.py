"""What a job is going to cost, and whether it ends in time, before it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spotmpi.capacity.choice import Planner
from spotmpi.capacity.job import Job, days
from spotmpi.capacity.market import Market, sampled
from spotmpi.capacity.simulation import simulate, window_ticks

_WINDOWS = 200


@dataclass(frozen=True)
class Expectation:
    """Expected dollars with the range of 90 % of the windows, the chance to end in time, and on-demand's dollars.

    ``source`` says what the windows are.
    """

    dollars: float
    low: float
    high: float
    in_time: float
    on_demand: float
    source: str


def expect(job: Job, history: Market) -> Expectation:
    """What *job* is expected to cost if the future is like *history*.

    Each window is one that was; where the history is shorter than two of them, one drawn from the chains fitted to it.
    """
    ticks = window_ticks(job, history)
    if history.ticks >= 2 * ticks:
        market, source = history, f"windows of the {days(history.ticks * history.step)} observed"
    else:
        chains = history.chains(job.sizes)
        market = sampled(chains, history, job.sizes, 20 * ticks, seed=0)
        source = f"windows drawn from the chances of change in {days(history.ticks * history.step)} observed"
    starts = np.unique(np.linspace(0, market.ticks - ticks, _WINDOWS).astype(np.int64))
    outcome = simulate(job, market, starts, Planner(job, lambda _: history))
    return Expectation(
        dollars=float(outcome.dollars.mean()),
        low=float(np.quantile(outcome.dollars, 0.05)),
        high=float(np.quantile(outcome.dollars, 0.95)),
        in_time=1 - outcome.missed / len(starts),
        on_demand=job.on_demand_cost(history.on_demand),
        source=f"{len(starts)} {source}",
    )
