"""The choice among modes at one moment, for many jobs at once: the least expected cost among what is safe. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.chains import Indices, returns
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.values import HYSTERESIS, NONE, ON_DEMAND, SPOT, Numbers, Setting, Values, solve

FIT_AGAIN = 86400.0  # seconds: chains are fitted to all history when a job begins, and each day
_POOLS = 3  # of a plan; with more than one size fewer
_CANDIDATES = 8  # how many pools take turns as the last one of a plan
_STATES = 64  # joint states of the pools: a plan takes up to 120 MB
_STEPS = 150  # of a plan, from now to the deadline
_STAGES = 3  # steps of a start
# Chains say that old capacity lasts, so by them a start may wait as long as there is time. Since they may be wrong, an
# hour without nodes has a price: this share of that of the cheapest spot gang. In the bands with a loose deadline
# 0.1 is 1 % better than 0, and 1.0 up to 10 % worse.
_IDLE = 0.1
_LATE = 2.0  # where only spot nodes are allowed, an hour of work after the deadline costs so many times one before it
_WAIT_SAVES = 0.005  # a wait of a job of spot nodes alone, while these are there, has to save this share of its cost
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Moment:
    """Jobs at one moment, as arrays over them: seconds since their start, and the seconds to the next decision.

    ``mode`` is NONE, ON_DEMAND, or from SPOT on one for each pool and size, the sizes of the first pool first;
    ``starting`` the seconds until the first new iteration, ``work`` seconds on the largest size, ``unsaved`` those
    of the work that is lost if the nodes are released, ``spent`` dollars.
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
    """The mode for each job, (jobs,), and for each mode its expected dollars to the end, and whether it is safe.

    These two are (jobs x modes).
    """

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
    begin = left - _starting(job, moment) - _to_do(job, _work(moment))  # before any progress: else no start is of use
    begin[:, :SPOT] = 0.0  # no nodes to lose
    result = end & (begin >= -_TOLERANCE)
    if job.budget is not None:
        finish = moment.price[:, ON_DEMAND : ON_DEMAND + 1] * (job.overhead + _to_do(job, after.work)) / 3600.0
        affordable = moment.spent[:, None] + after.paid + np.where(done, 0.0, finish) <= job.budget + _TOLERANCE
        result &= affordable
        # Else it would wait for what it can never pay for. Without on-demand nodes there is nothing else to do.
        result[:, NONE] &= affordable[:, SPOT:].any(axis=1) | ~moment.usable[:, ON_DEMAND]
    result[:, ON_DEMAND] = True
    jobs = np.flatnonzero((moment.mode >= SPOT) & too_late(job, moment))
    result[jobs, ON_DEMAND], result[jobs, moment.mode[jobs]] = False, True
    return np.asarray(result)


def too_late(job: Job, moment: Moment) -> NDArray[np.bool_]:
    """For each job, whether a start misses the deadline: by more than a tick on on-demand nodes, with these allowed.

    Nodes that work are kept then. A job of spot nodes alone goes on as soon as it can.
    """
    left = job.deadline - moment.elapsed - job.overhead
    if not job.on_demand_allowed:
        return np.full(len(moment.mode), left <= moment.tick)
    return np.asarray(left - moment.work / job.on_demand_speed < -max(60.0, moment.tick))


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
        self._day, self._market, self._ranked = -1.0, history(0.0), [0]  # what is known since the last day began
        self._usual, self._memory = np.zeros(0), 0.0
        self._plans: dict[tuple[int, ...], Values] = {}  # by their pools

    def __call__(self, moment: Moment) -> Indices:
        """The mode for each job."""
        return self.choose(moment).mode

    def choose(self, moment: Moment) -> Choice:
        """The choice for each job, among the pools of a plan: others are expected to cost infinitely much.

        These are the cheapest so far, and of the others that of the present nodes, or else what is cheapest now.
        """
        # What was seen until the present day began is taken into account.
        day = moment.elapsed // FIT_AGAIN * FIT_AGAIN
        if day != self._day:
            self._day, self._market, self._plans = day, self._history(day), {}
            self._ranked = self._market.ranked(self.job.sizes[0])
            self._usual, self._memory = self._market.usual_price(), self._market.price_memory()
        sizes, count = len(self.job.sizes), min(_POOLS, int(math.log(_STATES + 0.5, 2 * len(self.job.sizes) + 2)))
        fixed, others = self._ranked[: count - 1], self._ranked[count - 1 :] or self._ranked[-1:]
        last = _last_pool(moment, others, sizes)
        shape = moment.price.shape
        choice = Choice(np.zeros(len(last), np.int64), np.full(shape, np.inf), np.zeros(shape, np.bool_))
        for pool in np.unique(last).tolist():
            pools, jobs = sorted({*fixed, pool}), np.flatnonzero(last == pool)
            modes = np.array(
                [NONE, ON_DEMAND, *(SPOT + each * sizes + size for each in pools for size in range(sizes))]
            )
            chosen = self._choose(self._plan(pools), _part(moment, jobs, pools, modes), self._usual[pools])
            choice.mode[jobs] = modes[chosen.mode]
            choice.expected[np.ix_(jobs, modes)], choice.safe[np.ix_(jobs, modes)] = chosen.expected, chosen.safe
        return choice

    def _choose(self, plan: Values, moment: Moment, usual: Numbers) -> Choice:
        """The cheapest mode for each job that is safe and has its nodes; one stays in a mode that costs slightly more.

        *usual* are the prices of the plan for a node of each pool.
        Expected dollars, (jobs x modes), are those from this moment to the end.
        """
        job, jobs, after = self.job, np.arange(len(moment.mode)), step(self.job, moment)
        expected = self._expected(plan, moment, after, usual)
        if job.market == "on-demand":  # which no wait makes cheaper
            expected[:, NONE] = np.where(moment.usable[:, ON_DEMAND], np.inf, expected[:, NONE])
        if not job.on_demand_allowed and too_late(job, moment).all():
            # Dollars to the end in each mode if it keeps its nodes; without nodes it never ends (jobs x modes).
            expected = np.full(moment.price.shape, plan.setting.leftover * plan.setting.work / 3600.0)
            left = after.starting[:, SPOT:] + after.work[:, SPOT:] / plan.setting.mode_speeds[SPOT:]
            expected[:, SPOT:] = after.paid[:, SPOT:] + moment.price[:, SPOT:] * left / 3600.0
        allowed = safe(job, moment, after)
        ranked = np.where(moment.usable & allowed, expected, np.inf)
        stuck = ~np.isfinite(ranked).any(axis=1)  # no on-demand nodes either: then anything that works, else wait
        ranked[stuck] = np.where(moment.usable[stuck], expected[stuck], np.inf)
        ranked[stuck, NONE] = 1e12
        mode = ranked.argmin(axis=1)
        start = np.maximum(moment.price[jobs, mode], moment.price[jobs, moment.mode]) * job.overhead / 3600.0
        stay = (moment.mode != NONE) & (ranked[jobs, moment.mode] <= ranked[jobs, mode] + HYSTERESIS * start)
        if not job.on_demand_allowed:
            first = ranked[:, SPOT:].argmin(axis=1) + SPOT
            saves = ranked[:, NONE] < ranked[jobs, first] * (1 - _WAIT_SAVES)
            mode = np.where((moment.mode == NONE) & (mode == NONE) & ~saves, first, mode)
        return Choice(np.where(stay, moment.mode, mode), expected, allowed)

    def _expected(self, plan: Values, moment: Moment, after: Step, usual: Numbers) -> Numbers:
        """Expected dollars to the end in each mode (jobs x modes) if the next decision is a tick later, *after* that.

        Where a loss costs work it is a step of *plan* later, at the end of which nodes are lost there. Spot nodes that
        were to work for a part of a step would be charged for the losses of all of it, so that a wait, or on-demand
        nodes, seemed better at each decision again. A loss that costs a start alone is seen better by ticks.
        """
        job, jobs, tick = self.job, len(moment.mode), moment.tick
        if job.lost_work:
            tick = max(tick, min(plan.setting.step, job.deadline - moment.elapsed))
            after = step(job, replace(moment, tick=tick))
        seconds = np.full(jobs, job.deadline - moment.elapsed - tick)
        joint = np.ravel_multi_index(tuple(moment.state), tuple(len(chain) for chain in plan.setting.chains))
        expected = after.paid + plan.expected(seconds, joint, after.work, after.starting)
        expected = self._at_present_prices(expected, moment, after, usual)
        expected[:, NONE] += plan.setting.idle * tick / 3600.0
        return np.where(after.work <= _TOLERANCE, after.paid, expected)

    def _at_present_prices(self, expected: Numbers, moment: Moment, after: Step, usual: Numbers) -> Numbers:
        """*expected* with spot prices that go back to the *usual* ones slowly, as those of the plan do at once.

        Who waits for usual prices, or goes back to them from on-demand nodes, pays some of the present ones too.
        """
        sizes = np.array(self.job.sizes * len(usual))
        above = moment.price[:, SPOT:] - np.repeat(usual, len(self.job.sizes)) * sizes
        usable = moment.usable[:, SPOT:]
        if not (above * usable).any():
            return expected
        left = after.starting[:, SPOT:] + after.work[:, SPOT:] / mode_speeds(self.job, len(usual))[SPOT:]
        lasts = self._memory * (1.0 - np.exp(-left / self._memory))
        result = expected.copy()
        change = above * lasts / 3600.0
        # Who leaves a pool soon does not gain all of its change: one stays, or pays the prices of the best one.
        best = np.where(usable, expected[:, SPOT:], np.inf).argmin(axis=1)[:, None]
        stay = after.paid[:, SPOT:] + (moment.price[:, SPOT:] - above) * left / 3600.0 + change
        leave = expected[:, SPOT:] + np.take_along_axis(change, best, axis=1)
        changed = np.maximum(expected[:, SPOT:] + change, np.minimum(leave, stay))
        before = moment.price[:, SPOT:] - above
        ratio = np.divide(moment.price[:, SPOT:], before, out=np.ones_like(before), where=before > 0)
        changed = np.maximum(changed, expected[:, SPOT:] * np.minimum(ratio, 1.0))  # less is paid for nowhere
        result[:, SPOT:] = np.where(usable, changed, expected[:, SPOT:])
        before, now = (np.where(usable, each[:, SPOT:], np.inf).min(axis=1) for each in (expected, result))
        with np.errstate(invalid="ignore"):
            more = np.where(usable.any(axis=1), np.maximum(now - before, 0.0), 0.0)
        if self.job.on_demand_allowed:
            seconds = after.starting[:, ON_DEMAND] + after.work[:, ON_DEMAND] / self.job.on_demand_speed
            to_the_end = after.paid[:, ON_DEMAND] + moment.price[:, ON_DEMAND] * seconds / 3600.0
            most = np.maximum(expected[:, ON_DEMAND], to_the_end)
            result[:, ON_DEMAND] = np.minimum(expected[:, ON_DEMAND] + more, most)
            more = np.minimum(more, result[:, ON_DEMAND] - expected[:, ON_DEMAND])
        result[:, NONE] += more
        return result

    def _plan(self, pools: list[int]) -> Values:
        key = tuple(pools)
        if key not in self._plans:
            self._plans[key] = _solved(setting(self.job, self._market.only(pools), self.job.deadline - self._day))
        return self._plans[key]


def _last_pool(moment: Moment, others: list[int], sizes: int) -> Indices:
    """For each job one of the *others*: that of its nodes, else the one that is cheapest now, else the first."""
    candidates = np.array(others[:_CANDIDATES])
    smallest = SPOT + candidates * sizes
    price = np.where(moment.usable[:, smallest], moment.price[:, smallest], np.inf)
    here = np.where(moment.mode >= SPOT, (moment.mode - SPOT) // sizes, -1)
    is_other = (here[:, None] == np.array(others)).any(axis=1)
    return np.where(is_other, here, candidates[price.argmin(axis=1)])


def _part(moment: Moment, jobs: Indices, pools: list[int], modes: Indices) -> Moment:
    """*moment* of these *jobs* with these *pools* alone, whose *modes* are given."""
    at = np.ix_(jobs, modes)
    return Moment(
        elapsed=moment.elapsed,
        tick=moment.tick,
        mode=np.searchsorted(modes, moment.mode[jobs]),
        starting=moment.starting[jobs],
        work=moment.work[jobs],
        unsaved=moment.unsaved[jobs],
        spent=moment.spent[jobs],
        state=moment.state[pools][:, jobs],
        price=moment.price[at],
        usable=moment.usable[at],
    )


def setting(job: Job, market: Market, horizon: float) -> Setting:
    """What the values of *job* depend on after *market* was observed, over the next *horizon* seconds."""
    factor = math.ceil(max(horizon / _STEPS, job.overhead / _STAGES) / market.step - _TOLERANCE) or 1
    ticks = market.chains(job.sizes)
    chains = [np.linalg.matrix_power(chain, factor) for chain in ticks]
    gangs = [(chain, size) for chain in ticks for size in range(len(job.sizes))] if factor > 1 else []
    returned = [returns(chain, size, factor) for chain, size in gangs]
    usual = [float(f"{price:.3g}") for price in market.usual_price()]
    nodes = job.sizes[job.on_demand_size]
    late = market.on_demand * nodes / job.on_demand_speed * (1.0 if job.on_demand_allowed else _LATE)
    return Setting(
        chains=tuple(tuple(map(_rounded, chain)) for chain in chains),
        returned=tuple(tuple(tuple(float(f"{each:.3g}") for each in row) for row in chances) for chances in returned),
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
        lost_work=job.lost_work,
    )


def _rounded(chances: Numbers) -> tuple[float, ...]:
    """*chances* with three digits, so that plans are found again, but for the largest: they sum to 1.

    What is missing in a step is missing in each of the hundred steps of a plan.
    """
    rounded = np.array([float(f"{chance:.3g}") for chance in chances])
    rounded[rounded.argmax()] += 1.0 - rounded.sum()
    return tuple(rounded.tolist())


@lru_cache(maxsize=2)
def _solved(setting: Setting) -> Values:
    return solve(setting)
