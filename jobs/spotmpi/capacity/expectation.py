"""What a job is going to cost, and whether it ends in time, before it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spotmpi.capacity.choice import Planner
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market, sampled
from spotmpi.capacity.simulation import Outcome, simulate, window_ticks

_WINDOWS = 200


@dataclass(frozen=True)
class Expectation:
    """Expected dollars with the range of 90 % of the windows, the chance to end in time, and on-demand's dollars."""

    dollars: float
    low: float
    high: float
    in_time: float
    on_demand: float


def expect(job: Job, history: Market) -> Expectation:
    """What *job* is expected to cost if nodes come and go as in *history*: windows drawn from chains fitted to it."""
    ticks = window_ticks(job, history)
    market = sampled(history.chains(job.sizes), history, job.sizes, 20 * ticks, seed=0)
    starts = np.unique(np.linspace(0, market.ticks - ticks, _WINDOWS).astype(np.int64))
    return expected_of(job, simulate(job, market, starts, Planner(job, lambda _: history)), history.on_demand)


def expected_of(job: Job, outcome: Outcome, on_demand: float) -> Expectation:
    """What *job* is expected to cost if it goes as in a window of *outcome*; *on_demand* is the price of a node."""
    return Expectation(
        dollars=float(outcome.dollars.mean()),
        low=float(np.quantile(outcome.dollars, 0.05)),
        high=float(np.quantile(outcome.dollars, 0.95)),
        in_time=1 - outcome.missed / len(outcome.dollars),
        on_demand=job.on_demand_cost(on_demand),
    )
