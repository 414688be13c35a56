"""What is to be done, and within which limits: work, sizes, deadline, budget and market of a job. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

MarketName = Literal["spot", "on-demand", "auto"]


@dataclass(frozen=True)
class Job:
    """Work in seconds on the largest of the ascending ``sizes`` (numbers of nodes), and the rules for its placements.

    ``speeds`` are those of the sizes, relative to the largest. ``deadline`` is in seconds from the start, ``overhead``
    is the time from the request for nodes to the first new iteration, ``lost_work`` the most work that the loss of spot
    nodes may cost, in seconds on the largest size, ``budget`` is in dollars. On the market "auto"
    and "on-demand" the deadline is kept; on "spot" it is kept if capacity allows. Without ``zones`` and
    ``instance_types`` all that are offered are allowed; they have to be of one region and equally fast.
    """

    work: float
    deadline: float
    sizes: tuple[int, ...] = (1,)
    speeds: tuple[float, ...] = (1.0,)
    overhead: float = 300.0
    lost_work: float = 0.0
    market: MarketName = "auto"
    budget: float | None = None
    zones: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()

    @property
    def on_demand_allowed(self) -> bool:
        """Whether it may run on on-demand nodes."""
        return self.market != "spot"

    @cached_property
    def on_demand_size(self) -> int:
        """The index of the size on on-demand nodes: that with the fewest node hours which is in time from the start."""
        in_time = [index for index in range(len(self.sizes)) if self.on_demand_time(index) <= self.deadline]
        return min(in_time or [len(self.sizes) - 1], key=lambda index: (self.sizes[index] / self.speeds[index], -index))

    @property
    def on_demand_speed(self) -> float:
        """The speed on on-demand nodes."""
        return self.speeds[self.on_demand_size]

    def on_demand_time(self, size: int) -> float:
        """Seconds from the start to the end on on-demand nodes alone."""
        return self.overhead + self.work / self.speeds[size]

    def on_demand_cost(self, price: float) -> float:
        """Dollars on on-demand nodes alone, at *price* per node and hour."""
        return self.on_demand_time(self.on_demand_size) / 3600.0 * price * self.sizes[self.on_demand_size]

    def slack(self, elapsed: float, work: float) -> float:
        """Seconds to the last safe moment with *work* left, *elapsed* seconds after the start; infinite on "spot"."""
        if not self.on_demand_allowed:
            return float("inf")
        return self.deadline - elapsed - self.overhead - work / self.on_demand_speed


def chance(in_time: float) -> str:
    """The chance to end in time, rounded down to tenths of a per cent, and what expected dollars are where it does not.

    A late one has not done its work at the deadline, and costs more.
    """
    text = f"{math.floor(1000 * in_time + 1e-6) / 10:g} % in time"
    return text if in_time >= 1 else f"{text} (the cost of the others is that until the deadline)"


def hours(seconds: float) -> str:
    """A time as people read it: ``5 min``, ``3 h 20 min`` or ``16 h``."""
    minutes = max(0, -int(-seconds // 60))
    whole, rest = divmod(minutes, 60)
    if not whole:
        return f"{rest} min"
    return f"{whole} h {rest} min" if rest else f"{whole} h"


def days(seconds: float) -> str:
    """A time in whole days, ``15 days``, or up to two of them as `hours` has it."""
    return hours(seconds) if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"
