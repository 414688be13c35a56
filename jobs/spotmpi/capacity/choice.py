"""The choice among modes at one moment, for many jobs at once: the least expected cost among what is safe. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.chains import Indices
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.values import NONE, ON_DEMAND, SPOT, Numbers, Setting, Values, solve

FIT_AGAIN = 86400.0  # seconds: chains are fitted to all history when a job begins, and each day
POOLS = 3  # how many pools a plan considers; with more than one size fewer, see `planned_pools`
_STATES = 64  # joint states of the pools: a plan takes up to 120 MB
_STEPS = 150  # of a plan, from now to the deadline
_STAGES = 3  # steps of a start
# Chains say that old capacity lasts, so by them a start may wait as long as there is time. Since they may be wrong, an
# hour without nodes has a price: this share of that of the cheapest spot gang. In the bands with a loose deadline
# 0.1 is 1 % better than 0, and 1.0 up to 10 % worse.
_IDLE = 0.1
_HYSTERESIS = 0.25  # a switch or a stop has to save this share of what a start costs, in addition to its own start
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Moment:
    """Jobs at one moment, as arrays over them: seconds since their start, and the seconds to the next decision.

    ``mode`` is NONE, ON_DEMAND, or from SPOT on one for each pool and size, the sizes of the first pool first;
    ``starting`` the seconds until the first new iteration, ``work`` seconds on the largest size, ``unsaved`` those
    of the work that is lost if the nodes are given back, ``spent`` dollars.
    ``state`` (pools x jobs) are the states of the pools, ``price`` (jobs x modes) dollars per hour of the gang, and
    ``usable`` whether a mode has its nodes.
    """

    elapsed: float
    tick: float
    mode: Indices
    starting: Numbers
    work: Numbers
    unsaved: Numbers
    spent: Numbers
    state: Indices
    price: Numbers
    usable: NDArray[np.bool_]


Policy = Callable[[Moment], Indices]


@dataclass(frozen=True)
class Step:
    """What each mode does until the next decision (jobs x modes): work and start left behind it, and dollars."""

    work: Numbers
    starting: Numbers
    paid: Numbers


@dataclass(frozen=True)
class Choice:
    """The mode for each job, and for each mode its expected dollars to the end, and whether it is safe."""

    mode: Indices
    expected: Numbers
    safe: NDArray[np.bool_]


def mode_speeds(job: Job, pools: int) -> Numbers:
    """The speed of each mode with *pools* pools."""
    return np.array([0.0, job.on_demand_speed, *(job.speeds * pools)])


def mode_nodes(job: Job, pools: int) -> Indices:
    """The nodes of each mode."""
    return np.array([0, job.sizes[job.on_demand_size], *(job.sizes * pools)])


def _starting(job: Job, moment: Moment) -> Numbers:
    """Seconds until the first new iteration in each mode (jobs x modes)."""
    starting = np.full(moment.price.shape, job.overhead)
    starting[np.arange(len(moment.mode)), moment.mode] = moment.starting
    starting[:, NONE] = 0.0
    return starting


def _work(moment: Moment) -> Numbers:
    """Seconds of work that is left when each mode begins (jobs x modes)."""
    work = np.repeat((moment.work + moment.unsaved)[:, None], moment.price.shape[1], axis=1)
    work[np.arange(len(moment.mode)), moment.mode] = moment.work
    return work


def step(job: Job, moment: Moment) -> Step:
    """What each mode does until the next decision, if it keeps its nodes."""
    speeds = mode_speeds(job, (moment.price.shape[1] - SPOT) // len(job.sizes))
    starting, before = _starting(job, moment), _work(moment)
    work = np.maximum(before - speeds * np.maximum(0.0, moment.tick - starting), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = np.minimum(moment.tick, starting + before / speeds)
    busy[:, NONE] = 0.0
    return Step(work, np.maximum(starting - moment.tick, 0.0), moment.price * busy / 3600.0)


def safe(job: Job, moment: Moment, after: Step) -> NDArray[np.bool_]:
    """Which modes leave enough time and money, whenever they lose nodes before the next decision (jobs x modes)."""
    done = after.work <= _TOLERANCE
    if not job.on_demand_allowed:
        affordable = moment.spent[:, None] + after.paid <= (math.inf if job.budget is None else job.budget)
        affordable[:, NONE] = True
        return np.asarray(affordable)
    left = job.deadline - moment.elapsed - job.overhead
    end = done | (left - moment.tick - _to_do(job, after.work) >= -_TOLERANCE)
    idle = np.minimum(_starting(job, moment), moment.tick)
    begin = left - idle - _to_do(job, _work(moment))  # before any progress
    begin[:, :SPOT] = 0.0  # no nodes to lose
    result = end & (begin >= -_TOLERANCE)
    if job.budget is not None:
        finish = moment.price[:, ON_DEMAND : ON_DEMAND + 1] * (job.overhead + _to_do(job, after.work)) / 3600.0
        result &= moment.spent[:, None] + after.paid + np.where(done, 0.0, finish) <= job.budget + _TOLERANCE
    result[:, ON_DEMAND] = True
    return np.asarray(result)


def _to_do(job: Job, work: Numbers) -> Numbers:
    """Seconds on on-demand nodes for *work* (jobs x modes), and for what a loss of spot nodes costs."""
    work = work.copy()
    lost = np.clip(job.work - work[:, SPOT:], 0.0, job.lost_work)
    work[:, SPOT:] += np.where(work[:, SPOT:] > _TOLERANCE, lost, 0.0)
    return np.asarray(work / job.on_demand_speed)


class Planner:
    """The policy: it plans with chains fitted to *history*, and renews the plan each day by what it saw meanwhile.

    ``history`` gives the market before so many seconds since the start.
    """

    def __init__(self, job: Job, history: Callable[[float], Market]) -> None:
        self.job, self._history = job, history
        self._plans: dict[int, Values] = {}

    def __call__(self, moment: Moment) -> Indices:
        """The mode for each job."""
        return self.choose(moment).mode

    def choose(self, moment: Moment) -> Choice:
        """The choice for each job."""
        plan, job = self._plan(moment.elapsed), self.job
        count = len(moment.mode)
        jobs, sizes = np.arange(count), [len(chain) for chain in plan.setting.chains]
        after = step(job, moment)
        seconds = np.full(count, job.deadline - moment.elapsed - moment.tick)
        joint = np.ravel_multi_index(tuple(moment.state), tuple(sizes))
        expected = after.paid + plan.expected(seconds, joint, after.work, after.starting)
        expected[:, NONE] += plan.setting.idle * moment.tick / 3600.0
        expected = np.where(after.work <= _TOLERANCE, after.paid, expected)
        allowed = safe(job, moment, after)
        ranked = np.where(moment.usable & allowed, expected, np.inf)
        stuck = ~np.isfinite(ranked).any(axis=1)  # no on-demand nodes either: then anything that works, else wait
        ranked[stuck] = np.where(moment.usable[stuck], expected[stuck], np.inf)
        ranked[stuck, NONE] = 1e12
        mode = ranked.argmin(axis=1)
        start = np.maximum(moment.price[jobs, mode], moment.price[jobs, moment.mode]) * job.overhead / 3600.0
        stay = (moment.mode != NONE) & (ranked[jobs, moment.mode] <= ranked[jobs, mode] + _HYSTERESIS * start)
        return Choice(np.where(stay, moment.mode, mode), expected, allowed)

    def _plan(self, elapsed: float) -> Values:
        day = int(elapsed // FIT_AGAIN)
        if day not in self._plans:
            since = day * FIT_AGAIN
            self._plans = {day: _solved(setting(self.job, self._history(since), self.job.deadline - since))}
        return self._plans[day]


def planned_pools(job: Job) -> int:
    """How many pools a plan considers."""
    return min(POOLS, int(math.log(_STATES + 0.5, 2 * len(job.sizes) + 2)))


def setting(job: Job, market: Market, horizon: float) -> Setting:
    """What the values of *job* depend on after *market* was observed, over the next *horizon* seconds."""
    factor = math.ceil(max(horizon / _STEPS, job.overhead / _STAGES) / market.step - _TOLERANCE) or 1
    chains = [np.linalg.matrix_power(chain, factor) for chain in market.chains(job.sizes)]
    usual = [float(f"{price:.3g}") for price in market.usual_price()]
    nodes = job.sizes[job.on_demand_size]
    late = market.on_demand * nodes / job.on_demand_speed
    return Setting(
        chains=tuple(tuple(tuple(float(f"{chance:.3g}") for chance in row) for row in chain) for chain in chains),
        spot=tuple(tuple(price * size for size in job.sizes) for price in usual),
        on_demand=market.on_demand * nodes if job.on_demand_allowed else None,
        on_demand_speed=job.on_demand_speed,
        speeds=job.speeds,
        step=market.step * factor,
        overhead=job.overhead,
        work=job.work,
        horizon=max(horizon, market.step),
        leftover=late,
        idle=_IDLE * min(usual) * job.sizes[-1],
    )


@lru_cache(maxsize=2)
def _solved(setting: Setting) -> Values:
    return solve(setting)
