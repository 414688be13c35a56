"""Expected cost to finish from each state, by backward induction over chains of capacity. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.chains import Indices

Floats = NDArray[np.float32]
Numbers = NDArray[np.float64]
NONE, ON_DEMAND, SPOT = 0, 1, 2  # modes: no nodes, on-demand, and from SPOT on each pool with each size
# The share of the work that a loss may cost which it does cost, in the first hour of a pool's nodes and later: what was
# done since these came is less at first. On three recorded markets all of it is 2 % worse, and none 1 %.
_REPEATED = np.array([0.25, 0.75], dtype=np.float32)
HYSTERESIS = 0.25  # a switch or a stop has to save this share of what a start costs, in addition to its own start
HOPELESS = np.float32(1e9)  # finite, since 0 x infinity is not a number


@dataclass(frozen=True)
class Setting:
    """What values depend on: the chain of each pool over a step, prices, speeds and the time that a start takes.

    ``returned`` has for each spot mode the chances of its pool's chain that its nodes are there before and after a
    step, and were not meanwhile; it is empty where pools change at steps alone.
    ``spot`` has dollars per hour of a gang for each pool and size; ``on_demand`` likewise, None where on-demand is not
    allowed. ``speeds`` are relative to the largest size, ``work`` is on it, and times are in seconds.
    ``leftover`` is the price in dollars of an hour of work that is not done at the deadline, ``idle`` that of an hour
    without nodes. ``lost_work`` are seconds of it that the loss of nodes may cost.
    """

    chains: tuple[tuple[tuple[float, ...], ...], ...]
    returned: tuple[tuple[tuple[float, ...], ...], ...]
    spot: tuple[tuple[float, ...], ...]
    on_demand: float | None
    on_demand_speed: float
    speeds: tuple[float, ...]
    step: float
    overhead: float
    work: float
    horizon: float
    leftover: float
    idle: float
    lost_work: float

    @property
    def gangs(self) -> int:
        """The number of spot modes: each size in each pool."""
        return len(self.chains) * len(self.speeds)

    @property
    def stages(self) -> int:
        """In how many steps a start ends; work begins in the last of them."""
        return max(1, math.ceil(self.overhead / self.step - 1e-9))

    @property
    def rest(self) -> float:
        """Seconds of a start in the step in which work begins."""
        return self.overhead - (self.stages - 1) * self.step

    @cached_property
    def mode_speeds(self) -> Numbers:
        """The speed in each mode."""
        return np.array([0.0, self.on_demand_speed, *(self.speeds * len(self.chains))])

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Whether each joint state of the pools has the nodes of each spot mode: an array states x gangs."""
        shape = tuple(len(chain) for chain in self.chains)
        level = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1) // 2
        return np.asarray(level[:, :, None] > np.arange(len(self.speeds))).reshape(len(level), -1)


@dataclass(frozen=True)
class Values:
    """Expected dollars after a step, by steps left, joint state of the pools, mode and cells of work left.

    A cell is the work of the largest size in a step. Behind the modes that work are those that still start, by the
    number of steps that the start still takes. On on-demand nodes, which are not lost, a start counts as work.
    """

    setting: Setting
    after: Floats  # steps x states x (modes + gangs x (stages - 1)) x cells

    def expected(self, seconds: Numbers, state: Indices, work: Numbers, starting: Numbers) -> Numbers:
        """Expected dollars with *seconds* left (n), in joint *state* (n), by mode (n x modes).

        *work* and *starting* are the seconds of work, and of the start, that are left in each mode (n x modes).
        """
        setting, last = self.setting, np.array(self.after.shape) - 1
        work = work.copy()
        work[:, ON_DEMAND] += starting[:, ON_DEMAND] * setting.on_demand_speed
        steps = np.clip(seconds / setting.step, 0, last[0])
        cells = np.clip(work / setting.step, 0, last[3])
        beyond = np.maximum(work - last[3] * setting.step, 0.0)  # which no way to the deadline has time for
        stage = np.clip((starting - setting.rest) / setting.step + 1, 0, setting.stages - 1)
        stage[:, :SPOT] = 0
        # Less than a cell of work takes a start all the same, which no work does not: it costs what a cell does, less
        # than that by as much as a second cell costs more, and at most what work costs at the deadline.
        little = np.where((cells > 0) & (np.arange(cells.shape[1]) != ON_DEMAND), np.maximum(1 - cells, 0.0), 0.0)
        result: Numbers = self._at(steps, state, cells + little, stage) + beyond / 3600.0 * setting.leftover
        if little.any():
            one, two = (self._at(steps, state, np.full_like(cells, cell), stage) for cell in (1.0, 2.0))
            result -= little * np.clip(two - one, 0.0, setting.step / 3600.0 * setting.leftover)
        return result

    def _at(self, steps: Numbers, state: Indices, cells: Numbers, stage: Numbers) -> Numbers:
        """Expected dollars with so many *steps* left (n), and *cells* of work and *stage* of a start (n x modes)."""
        result, last = np.zeros_like(cells), np.array(self.after.shape) - 1
        for step, step_weight in _neighbours(steps, last[0]):
            for cell, cell_weight in _neighbours(cells, last[3]):
                for index, weight in _neighbours(stage, self.setting.stages - 1):
                    mode = np.arange(cells.shape[1]) + index * self.setting.gangs
                    part = self.after[step[:, None], state[:, None], mode, cell]
                    result += step_weight[:, None] * cell_weight * weight * part
        return result


def _neighbours(at: Numbers, last: int) -> list[tuple[Indices, Numbers]]:
    """The two indices around each of *at* with their weights; one where all are whole."""
    low = at.astype(np.int64)
    weight = at - low
    if not weight.any():
        return [(low, np.ones_like(at))]
    return [(low, 1 - weight), (np.minimum(low + 1, last), weight)]


def solve(setting: Setting) -> Values:
    """The values of *setting*, for all times up to its horizon and all work up to its own plus a start.

    Work that takes longer than the horizon has no cells: it costs what is not done at the deadline, in each mode.
    """
    steps = math.ceil(setting.horizon / setting.step - 1e-9) + 1
    cells = math.ceil((min(setting.work, setting.horizon) + setting.overhead) / setting.step - 1e-9) + 2
    recursion = _Recursion(setting, cells)
    modes = SPOT + setting.gangs * setting.stages
    after = np.empty((steps, len(setting.usable), modes, cells), dtype=np.float32)
    value = recursion.at_the_end(after.shape[1:])
    for index in range(steps):
        after[index] = recursion.before_a_change(value)
        value = recursion.best(after[index], (index + 1) * setting.step)
    return Values(setting, after)


class _Recursion:
    """One step back in time, over arrays of states x modes x cells."""

    def __init__(self, setting: Setting, cells: int) -> None:
        self.setting = setting
        self.work = np.arange(cells) * setting.step
        self.chains = [np.array(chain, dtype=np.float32) for chain in setting.chains]
        self.returned = [np.array(chances, dtype=np.float32) for chances in setting.returned]
        self.lost = ~np.tile(setting.usable, setting.stages)
        self.repeated = self._shift(setting.lost_work)
        shape = tuple(len(chain) for chain in setting.chains)
        age = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1) % 2
        self.repeated_share = np.repeat(_REPEATED[age], len(setting.speeds), axis=1)[:, :, None]
        hours = setting.step / 3600.0
        spot = np.array(setting.spot, dtype=np.float32).reshape(-1, 1) * hours
        speeds = setting.mode_speeds[SPOT:, None]
        self.pay = spot * np.clip(self.work / (setting.step * speeds), 0, 1).astype(np.float32)
        self.pay_last = spot * np.clip((setting.rest + self.work / speeds) / setting.step, 0, 1).astype(np.float32)
        self.pay_start = np.broadcast_to(spot, self.pay.shape)
        self.idle = np.where(self.work > 0, setting.idle * hours, 0.0).astype(np.float32)
        self.leave = np.float32(HYSTERESIS * (setting.on_demand or 0.0) * setting.overhead / 3600.0)  # on-demand nodes
        self.done = [self._shift(-setting.step * each) for each in setting.speeds]
        self.begun = [self._shift(-(setting.step - setting.rest) * each) for each in setting.speeds]
        self.ahead = {idle: self._ahead((setting.step - idle) * speeds) for idle in (0.0, setting.rest, setting.step)}
        speed = setting.on_demand_speed
        self.on_demand_done = self._shift(-setting.step * speed)
        self.on_demand_start = self._shift(setting.overhead * speed)
        share = np.clip(self.work / (setting.step * speed), 0, 1).astype(np.float32)
        self.on_demand_pay = np.float32((setting.on_demand or 0.0) * hours) * share

    def _ahead(self, progress: Numbers) -> tuple[Numbers, Numbers]:
        """Work that gangs do in a step, and, in seconds on on-demand nodes, that less what a loss then costs."""
        lost = np.clip(self.setting.work - self.work + progress, 0.0, self.setting.lost_work)
        return progress, (progress - lost) / self.setting.on_demand_speed

    def _shift(self, seconds: float) -> tuple[Indices, Floats]:
        """Index and weight that interpolate at each cell's work plus *seconds*."""
        at = np.clip((self.work + seconds) / self.setting.step, 0, len(self.work) - 1)
        low = np.minimum((at + 1e-9).astype(np.int64), len(self.work) - 2)
        return low, np.maximum(at - low, 0).astype(np.float32)

    @staticmethod
    def _at(values: Floats, shift: tuple[Indices, Floats]) -> Floats:
        low, weight = shift
        first = values.take(low, axis=-1)
        if not weight.any():
            return first
        more = values.take(low + 1, axis=-1)
        more -= first
        more *= weight
        more += first
        return more

    def _by_size(self, values: Floats, shifts: list[tuple[Indices, Floats]]) -> Floats:
        """*values* of gangs (states x gangs x cells), each size shifted as *shifts* say."""
        if len(shifts) == 1:
            return self._at(values, shifts[0])
        shifted = np.empty_like(values)
        for size, shift in enumerate(shifts):
            shifted[:, size :: len(shifts)] = self._at(values[:, size :: len(shifts)], shift)
        return shifted

    def at_the_end(self, shape: tuple[int, ...]) -> Floats:
        """The value when no time is left: what the rest of the work costs then; where it may be late, with a start."""
        start = self.setting.overhead if self.setting.on_demand is None else 0.0
        rest = np.where(self.work > 0, (self.work + start) / 3600.0 * self.setting.leftover, 0.0).astype(np.float32)
        return np.asarray(np.broadcast_to(rest, shape))

    def before_a_change(self, value: Floats) -> Floats:
        """The expectation of *value* over one step of all pools; a gang that loses nodes goes on as none.

        One that worked repeats some work.
        """
        none, gangs = value[:, NONE : NONE + 1], self.setting.gangs
        result = value.copy()
        np.copyto(result[:, SPOT:], none, where=self.lost[:, :, None])
        result = self._after_a_step(result, self.chains)
        again = self._at(none, self.repeated) - none if self.setting.lost_work else None
        if again is not None:
            costs = np.where(self.lost[:, :gangs, None], again, np.float32(0.0))
            result[:, SPOT : SPOT + gangs] += self.repeated_share * self._after_a_step(costs, self.chains)
        for gang, returned in enumerate(self.returned):  # its nodes are there again, and it is not
            pool, modes = gang // len(self.setting.speeds), slice(SPOT + gang, None, gangs)
            chains = [*self.chains[:pool], returned, *self.chains[pool + 1 :]]
            result[:, modes] -= self._after_a_step(value[:, modes] - none, chains)
            if again is not None:
                result[:, SPOT + gang] += self.repeated_share[:, gang] * self._after_a_step(again, chains)[:, 0]
        result[..., 0] = 0.0  # the work is done: nothing is lost any more
        return result

    def _after_a_step(self, value: Floats, chains: list[Floats]) -> Floats:
        """The expectation of *value* (states x modes x cells) over one step of all pools by *chains*."""
        result, shape = value, [len(chain) for chain in chains]
        width = value.shape[1] * value.shape[2]
        for axis, chain in enumerate(chains):
            before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]) * width
            result = np.matmul(chain, result.reshape(before, shape[axis], behind))
        return result.reshape(value.shape)

    def best(self, after: Floats, seconds: float) -> Floats:
        """The value with *seconds* left, when *after* is the expectation behind the next step."""
        setting, gangs = self.setting, self.setting.gangs
        going = np.empty_like(after)
        going[:, NONE] = after[:, NONE] + self.idle
        going[:, ON_DEMAND] = self._at(after[:, ON_DEMAND], self.on_demand_done) + self.on_demand_pay
        running = after[:, SPOT : SPOT + gangs]
        work_begins = self._by_size(running, self.begun) + self.pay_last
        going[:, SPOT : SPOT + gangs] = self._by_size(running, self.done) + self.pay
        for stage in range(1, setting.stages):
            at = SPOT + stage * gangs
            before = after[:, at - gangs : at] + self.pay_start if stage > 1 else work_begins
            going[:, at : at + gangs] = before
        started = after[:, -gangs:] + self.pay_start if setting.stages > 1 else work_begins
        if setting.on_demand is not None:
            self._forbid(going, started, seconds)
        started = np.where(setting.usable[:, :, None], started, HOPELESS)
        fresh = np.minimum(going[:, NONE], started.min(axis=1))
        if setting.on_demand is not None:
            np.minimum(fresh, self._at(going[:, ON_DEMAND], self.on_demand_start), out=fresh)
        else:
            going[:, ON_DEMAND] = fresh
        value = np.minimum(going, fresh[:, None])
        again = self._at(fresh, self.repeated) - fresh if setting.lost_work else np.zeros_like(fresh)
        if setting.lost_work:  # nodes that work are left at the same cost as by a loss
            left = fresh[:, None] + self.repeated_share * again[:, None]
            np.minimum(going[:, SPOT : SPOT + gangs], left, out=value[:, SPOT : SPOT + gangs])
        # On-demand nodes are left later under the same condition as now. Else each decision would compare their return
        # with one a step later, which saves nearly as much, and put it off.
        if setting.on_demand is not None:
            left = fresh + self.leave + _REPEATED[1] * again
            np.minimum(going[:, ON_DEMAND], left, out=value[:, ON_DEMAND])
        return np.asarray(value)

    def _forbid(self, going: Floats, started: Floats, seconds: float) -> None:
        """Rule out what could leave too little time to finish on on-demand nodes."""
        setting, gangs = self.setting, self.setting.gangs
        slack = seconds - setting.overhead - self.work / setting.on_demand_speed

        def forbid(values: Floats, idle: float) -> None:
            progress, change = self.ahead[idle]
            late = slack - setting.step + change < -1e-6
            if late.any():
                np.copyto(values, HOPELESS, where=late & (self.work > progress))

        going[:, NONE, slack < setting.step - 1e-6] = HOPELESS
        forbid(going[:, SPOT : SPOT + gangs], 0.0)
        for stage in range(1, setting.stages):
            at = SPOT + stage * gangs
            forbid(going[:, at : at + gangs], setting.rest if stage == 1 else setting.step)
        forbid(started, setting.rest if setting.stages == 1 else setting.step)
