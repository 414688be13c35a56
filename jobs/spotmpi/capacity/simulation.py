"""Jobs on a recorded market: what a policy costs in many windows of it at once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.chains import Indices
from spotmpi.capacity.choice import Moment, Planner, Policy, mode_nodes, mode_speeds
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.values import NONE, ON_DEMAND, SPOT, Numbers


@dataclass(frozen=True)
class Outcome:
    """What happened in each window: dollars, seconds to the end (infinite if late), and starts.

    ``work`` is what was left at the deadline, ``on_demand`` and ``waited`` are seconds in that mode.
    """

    dollars: Numbers
    seconds: Numbers
    starts: Indices
    work: Numbers
    on_demand: Numbers
    waited: Numbers

    @property
    def missed(self) -> int:
        """In how many windows the deadline was missed."""
        return int(np.isinf(self.seconds).sum())

    def repeated(self, counts: Indices) -> Outcome:
        """That of each window as many times as *counts* says."""
        return Outcome(*(np.repeat(getattr(self, key.name), counts) for key in fields(self)))


def window_ticks(job: Job, market: Market) -> int:
    """The ticks of a window: up to the deadline, the last one perhaps in part."""
    return math.ceil(job.deadline / market.step - 1e-9)


def simulate(job: Job, market: Market, starts: Indices, policy: Policy) -> Outcome:
    """What *policy* costs in the windows of *market* that begin at the ticks *starts*.

    Capacity changes at ticks, and a loss is noticed at once; it costs the work that the job says, and so does a move.
    """
    windows = _Windows(job, market, starts)
    for index in range(window_ticks(job, market)):
        if not windows.unfinished.any():
            break
        moment = windows.moment(index)
        windows.advance(moment, policy(moment))
    return windows.outcome()


def planned(job: Job, market: Market, starts: Indices) -> Outcome:
    """What our policy costs in these windows; each plan knows the market before the first of them began."""
    first = int(starts.min())
    planner = Planner(job, lambda elapsed: market.upto(max(1, first + int(elapsed // market.step))))
    return simulate(job, market, starts, planner)


def join(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of several groups of windows as one."""
    return Outcome(*(np.concatenate([getattr(each, key.name) for each in outcomes]) for key in fields(Outcome)))


class _Windows:
    """The windows in progress, as arrays over them."""

    def __init__(self, job: Job, market: Market, starts: Indices) -> None:
        count, pools = len(starts), len(market.pools)
        self.job, self.market, self.starts = job, market, starts
        self.speeds, self.nodes = mode_speeds(job, pools), mode_nodes(job, pools)
        self.pool = np.repeat(np.arange(pools), len(job.sizes))
        self.states = market.states(job.sizes)
        self.mode = np.zeros(count, dtype=np.int64)
        self.starting, self.spent = np.zeros(count), np.zeros(count)
        self.on_demand, self.waited = np.zeros(count), np.zeros(count)
        self.work = np.full(count, float(job.work))
        self.progress = np.zeros(count)  # of the present nodes
        self.seconds = np.full(count, np.inf)
        self.count = np.zeros(count, dtype=np.int64)
        self.jobs = np.arange(count)

    @property
    def unfinished(self) -> NDArray[np.bool_]:
        return np.asarray(np.isinf(self.seconds))

    def moment(self, index: int) -> Moment:
        """All jobs at tick number *index*, after the loss of what is no longer offered."""
        market, at = self.market, self.starts + index
        price = np.empty((len(self.starts), SPOT + len(self.pool)))
        price[:, NONE], price[:, ON_DEMAND] = 0.0, market.on_demand
        price[:, SPOT:] = market.price[:, at].T[:, self.pool]
        usable = np.empty(price.shape, dtype=bool)
        usable[:, NONE], usable[:, ON_DEMAND] = True, self.job.on_demand_allowed
        usable[:, SPOT:] = market.offered[:, at].T[:, self.pool] >= self.nodes[SPOT:]
        if self.job.market == "on-demand":
            usable[:, SPOT:] = False
        lost = ~usable[self.jobs, self.mode]
        self.work += np.where(lost, np.minimum(self.job.lost_work, self.progress), 0.0)
        self.mode, self.progress = np.where(lost, NONE, self.mode), np.where(lost, 0.0, self.progress)
        self.starting = np.where(lost, 0.0, self.starting)
        elapsed = index * market.step
        tick = min(market.step, self.job.deadline - elapsed)
        price *= self.nodes
        return Moment(
            elapsed=elapsed,
            tick=tick,
            mode=self.mode,
            starting=self.starting,
            work=self.work,
            unsaved=np.minimum(self.job.lost_work, self.progress),
            spent=self.spent,
            state=self.states[:, at],
            price=price,
            usable=usable,
        )

    def advance(self, moment: Moment, mode: Indices) -> None:
        """Let all jobs work for a tick in the *mode* of each, (jobs,)."""
        job, tick, active = self.job, moment.tick, self.unfinished
        mode = np.where(active, mode, NONE)
        self.work = np.where(active & (mode != moment.mode), self.work + moment.unsaved, self.work)
        begun = (mode != moment.mode) & (mode != NONE)
        starting = np.where(begun, job.overhead, np.where(mode == NONE, 0.0, moment.starting))
        speed = self.speeds[mode]
        productive = np.minimum(np.maximum(tick - starting, 0.0), self.work / np.where(speed > 0, speed, 1.0))
        productive = np.where(mode == NONE, 0.0, productive)
        finished = active & (self.work - productive * speed <= 1e-6)
        busy = np.where(mode == NONE, 0.0, np.where(finished, starting + productive, tick))
        self.spent = self.spent + moment.price[self.jobs, mode] * busy / 3600.0
        self.progress = np.where(begun | (mode == NONE), 0.0, self.progress) + productive * speed
        self.work = np.maximum(self.work - productive * speed, 0.0)
        self.seconds = np.where(finished, moment.elapsed + busy, self.seconds)
        self.on_demand += np.where(mode == ON_DEMAND, busy, 0.0)
        self.waited += np.where(active & (mode == NONE), tick, 0.0)
        self.count += begun
        self.mode, self.starting = mode, np.maximum(starting - tick, 0.0)

    def outcome(self) -> Outcome:
        return Outcome(self.spent, self.seconds, self.count, self.work, self.on_demand, self.waited)
