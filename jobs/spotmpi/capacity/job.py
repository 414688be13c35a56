"""What is to be done, and within which limits: work, sizes, deadline, budget and market of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from spotmpi.core.errors import Problem

MarketName = Literal["spot", "on-demand", "auto"]
_TABLE = "capacity."


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

    def problems(self, on_demand_price: float | None) -> Iterator[Problem]:
        """Why this job cannot be done within its limits, each reason with its remedy."""
        if list(self.sizes) != sorted(set(self.sizes)):
            yield Problem(_TABLE + "nodes", list(self.sizes), "name each number of nodes once, the smallest first")
            return
        if len(self.speeds) != len(self.sizes) or self.speeds[-1] != 1 or min(self.speeds) <= 0 or max(self.speeds) > 1:
            remedy = f"give {len(self.sizes)} numbers above 0, one for each of `nodes`, the last one 1"
            yield Problem(_TABLE + "speeds", list(self.speeds), remedy)
            return
        if not self.on_demand_allowed:
            return
        shortest = self.on_demand_time(len(self.sizes) - 1)
        if self.deadline < shortest:
            remedy = (
                f"on-demand nodes need {hours(shortest)} ({hours(self.work)} of work and {hours(self.overhead)} for a "
                f"start): set at least {hours(shortest)}, or allow more nodes"
            )
            yield Problem(_TABLE + "deadline", hours(self.deadline), remedy)
        if (
            self.budget is not None
            and on_demand_price is not None
            and self.budget < self.on_demand_cost(on_demand_price)
        ):
            remedy = (
                f"on-demand nodes for all of the work cost ${self.on_demand_cost(on_demand_price):.2f}, so the "
                f'deadline cannot be kept for certain: raise it to that, or set market = "spot", which may be late'
            )
            yield Problem(_TABLE + "budget", self.budget, remedy)


def hours(seconds: float) -> str:
    """A time as people read it: ``5 min``, ``3 h 20 min`` or ``16 h``."""
    minutes = max(0, -int(-seconds // 60))
    whole, rest = divmod(minutes, 60)
    if not whole:
        return f"{rest} min"
    return f"{whole} h {rest} min" if rest else f"{whole} h"
