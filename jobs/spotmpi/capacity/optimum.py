"""What a job costs at least, with the future known, by dynamic programming over many windows at once. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.values import HOPELESS

Costs = NDArray[np.float32]
_ON_DEMAND = -1


def optimum(job: Job, market: Market, starts: NDArray[np.int64], leftover: float = 0.0) -> NDArray[np.float64]:
    """The least dollars that *job* costs in each window of *market* that begins at the ticks *starts*.

    Placements change at ticks. Without on-demand nodes an hour of work that is not done costs *leftover* dollars.
    """
    return _Optimum(job, market, starts, _cell(market.step, job), leftover).solve()


def _cell(step: float, job: Job) -> float:
    """Seconds of work in a cell, which divides the work; what is done in a tick and a start too, if not too fine."""
    done = [job.work, *(seconds * speed for seconds in (step, job.overhead) for speed in job.speeds)]
    common = math.gcd(*(round(each) for each in done))
    whole = common >= step / 12 and all(each % common == 0 for each in done)
    return float(common) if whole else job.work / math.ceil(max(job.work / step * 10, 20))


@dataclass
class _Optimum:
    job: Job
    market: Market
    starts: NDArray[np.int64]
    cell: float
    leftover: float

    def __post_init__(self) -> None:
        job, step = self.job, self.market.step
        self.ticks = math.ceil(job.deadline / step - 1e-9)
        self.work = np.arange(math.ceil(job.work / self.cell - 1e-9) + 1) * self.cell
        self.whole = int(job.overhead // step + 1e-9)
        self.rest = job.overhead - self.whole * step  # seconds of the overhead in the tick in which work begins
        self.modes = [(pool, size) for pool in range(len(self.market.pools)) for size in range(len(job.sizes))]
        if job.on_demand_allowed:
            self.modes += [(_ON_DEMAND, size) for size in range(len(job.sizes))]

    def solve(self) -> NDArray[np.float64]:
        shape = (len(self.starts), len(self.work))
        end = np.broadcast_to((self.work / 3600.0 * self.leftover).astype(np.float32), shape)
        if self.job.on_demand_allowed:
            end = np.where(self.work > 0, HOPELESS, end)
        depth = self.whole + (2 if self.rest > 0 else 1)
        idle = end
        later = {mode: [end] * depth for mode in self.modes}  # values of each mode at the next ticks, nearest first
        for tick in range(self.ticks - 1, -1, -1):
            idle = self._back(tick, idle, later)
        return idle[:, -1].astype(np.float64)

    def _back(self, tick: int, idle: Costs, later: dict[tuple[int, int], list[Costs]]) -> Costs:
        best = idle
        for mode in self.modes:
            best = np.minimum(best, self._started(tick, mode, later[mode]))
        for mode in self.modes:
            running = np.minimum(self._run(tick, mode, later[mode][0], 0.0), best)
            later[mode] = [running, *later[mode][:-1]]
        return best

    def _started(self, tick: int, mode: tuple[int, int], later: list[Costs]) -> Costs:
        """The value of a start now: it pays without progress first."""
        if tick + self.whole + (self.rest > 0) > self.ticks:
            return np.full_like(later[0], HOPELESS)
        if self.rest > 0:
            value = self._run(tick + self.whole, mode, later[self.whole], self.rest)
        else:
            value = later[self.whole - 1] if self.whole else self._run(tick, mode, later[0], 0.0)
        for index in range(self.whole):
            value = value + self._price(tick + index, mode)[:, None]
        return value

    def _run(self, tick: int, mode: tuple[int, int], after: Costs, idle_seconds: float) -> Costs:
        step, speed = self.market.step, self.job.speeds[mode[1]]
        done = (step - idle_seconds) * speed
        seconds = np.minimum(idle_seconds + self.work / speed, step)
        at = np.clip((self.work - done) / self.cell, 0, None)
        low = at.astype(np.int64)
        weight = np.where(at - low > 1e-4, at - low, 0.0).astype(np.float32)
        rest: Costs = after.take(low, axis=1)
        if weight.any():
            more = after.take(np.minimum(low + 1, len(self.work) - 1), axis=1)
            more -= rest
            more *= weight
            rest += more
        rest += self._price(tick, mode)[:, None] * (seconds / step).astype(np.float32)
        return rest

    def _price(self, tick: int, mode: tuple[int, int]) -> Costs:
        """Dollars of a tick in each window, infinite where the nodes are not available."""
        pool, size = mode
        nodes, hours = self.job.sizes[size], self.market.step / 3600.0
        if pool == _ON_DEMAND:
            return np.full(len(self.starts), self.market.on_demand * nodes * hours, dtype=np.float32)
        at = self.starts + tick
        price = self.market.price[pool, at] * nodes * hours
        return np.where(self.market.available[pool, at] >= nodes, price, HOPELESS).astype(np.float32)
