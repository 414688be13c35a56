"""A market as arrays: what each pool of one region offered at each tick. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.chains import Indices, Matrix, fit, levels, states
from spotmpi.capacity.placement import CapacityPool

_LAG = 3 * 3600.0  # seconds after which a price is compared with itself
_UNKNOWN_MEMORY = 6 * 3600.0  # before enough was observed
_MOST_ALIKE = 0.6  # six hours: with more, jobs on the V100 traces follow prices too often


@dataclass(frozen=True)
class Market:
    """Nodes that were available and their price per hour, arrays of pools x ticks of ``step`` seconds.

    ``on_demand`` is the price of an on-demand node. Where spot nodes cost more, they count as not available: EC2 takes
    them back then, unless a higher price was named.
    """

    pools: tuple[CapacityPool, ...]
    available: NDArray[Any]
    price: NDArray[np.float64]
    on_demand: float
    step: float

    @cached_property
    def offered(self) -> NDArray[Any]:
        """The nodes that are available for at most the price of on-demand nodes."""
        return np.where(self.price <= self.on_demand, self.available, 0)

    @property
    def ticks(self) -> int:
        """How many ticks it has."""
        return int(self.available.shape[1])

    def upto(self, tick: int) -> Market:
        """The same before *tick*."""
        return replace(self, available=self.available[:, :tick], price=self.price[:, :tick])

    def only(self, indices: Sequence[int]) -> Market:
        """The same with the pools of these indices alone."""
        at = list(indices)
        pools = tuple(self.pools[index] for index in at)
        return replace(self, pools=pools, available=self.available[at], price=self.price[at])

    def coarser(self, step: float) -> Market:
        """The same in ticks of about *step* seconds: the least that was available in each, at its first price."""
        factor = max(1, round(step / self.step))
        shape = (len(self.pools), self.ticks // factor, factor)
        used = shape[1] * factor
        available = self.available[:, :used].reshape(shape).min(axis=2)
        price = self.price[:, :used].reshape(shape)[:, :, 0]
        return replace(self, available=available, price=price, step=self.step * factor)

    def states(self, sizes: Sequence[int]) -> Indices:
        """The state of each pool at each tick, for a job of these sizes."""
        return states(levels(self.offered, sizes), self.step)

    def chains(self, sizes: Sequence[int]) -> tuple[Matrix, ...]:
        """The chain of each pool, fitted to all ticks."""
        return tuple(fit(state, len(sizes) + 1, self.step) for state in self.states(sizes))

    def usual_price(self) -> NDArray[np.float64]:
        """The price of each pool in the middle of the last day in which it offered nodes; else of the last day."""
        day = max(1, round(86400 / self.step))
        usual = np.empty(len(self.pools))
        for pool, offers in enumerate(self.offered > 0):
            price = self.price[pool, offers] if offers.any() else self.price[pool]
            usual[pool] = min(np.median(price[-day:]), self.on_demand)
        return usual

    def price_memory(self) -> float:
        """Seconds in which a price goes back by two thirds to what it was in the mean, as it did so far."""
        lag = max(1, round(_LAG / self.step))
        if self.ticks < 4 * lag:
            return _UNKNOWN_MEMORY
        off = self.price - self.price.mean(axis=1, keepdims=True)
        if not (var := float((off[:, lag:] ** 2).sum())) > 1e-9:
            return _UNKNOWN_MEMORY
        alike = float((off[:, lag:] * off[:, :-lag]).sum()) / var
        return -lag * self.step / math.log(min(max(alike, 0.001), _MOST_ALIKE))

    def ranked(self, size: int) -> list[int]:
        """The pools by what they cost per hour in which they have *size* nodes, the cheapest first."""
        share = ((self.offered >= size).sum(axis=1) + 1.0) / (self.ticks + 2.0)
        order: list[int] = np.argsort(self.usual_price() / share, kind="stable").tolist()
        return order


def sampled(chains: Sequence[Matrix], market: Market, sizes: Sequence[int], ticks: int, seed: int) -> Market:
    """A market of *ticks* as *chains* say, from the last states and usual prices of *market*."""
    random = np.random.default_rng(seed)
    state = market.states(sizes)[:, -1]
    sums = [np.cumsum(chain, axis=1) for chain in chains]
    nodes = np.array([0, *sizes])
    available = np.zeros((len(chains), ticks), dtype=np.int64)
    for tick in range(ticks):
        available[:, tick] = nodes[state // 2]
        chance = random.random(len(chains))
        state = np.array([np.searchsorted(sums[pool][state[pool]], chance[pool]) for pool in range(len(chains))])
        state = np.minimum(state, 2 * len(sizes) + 1)
    price = np.repeat(market.usual_price()[:, None], ticks, axis=1)
    return replace(market, available=available, price=price)
