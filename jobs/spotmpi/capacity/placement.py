"""Placements, the offers for them, and what can be decided about them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, Union

from spotmpi.agent.protocol import counted
from spotmpi.capacity.job import Job

CAPACITY_BLOCK: Literal["capacity-block"] = "capacity-block"
OfferMarket = Literal["spot", "on-demand", "capacity-block"]


@dataclass(frozen=True, order=True)
class CapacityPool:
    """A spot capacity pool: the spare instances of one type in one zone."""

    zone: str
    instance_type: str

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.zone}"


@dataclass(frozen=True)
class Placement:
    """Where a gang runs: all its nodes in one zone, on one market, of one instance type."""

    zone: str
    market: OfferMarket
    instance_type: str
    nodes: int
    reservation: str = ""  # of a Capacity Block

    def __str__(self) -> str:
        return f"{counted(self.nodes, 'node')} {self.instance_type}, {self.market}, in {self.zone}"


@dataclass(frozen=True)
class Offer:
    """What a zone has of an instance type on a market: dollars per node and hour, and how many nodes.

    ``available`` counts the nodes that the job already has there. None is unknown, which a request finds out at no
    cost where gangs are launched all or nothing; 0 stands for a request that was refused. A Capacity Block is there
    from ``start`` to ``end``, seconds after the start of the job, and its price is what nodes cost besides it.
    """

    zone: str
    market: OfferMarket
    instance_type: str
    price: float
    available: int | None = None
    reservation: str = ""
    start: float = -inf
    end: float = inf

    def __str__(self) -> str:
        return f"the Capacity Block {self.reservation}" if self.reservation else f"{self.pool}, {self.market}"

    def has(self, placement: Placement) -> bool:
        """Whether it is the offer of the nodes of *placement*."""
        there = (placement.zone, placement.market, placement.instance_type, placement.reservation)
        return (self.zone, self.market, self.instance_type, self.reservation) == there

    @property
    def pool(self) -> CapacityPool:
        """The pool that it belongs to."""
        return CapacityPool(self.zone, self.instance_type)


@dataclass(frozen=True)
class Observation:
    """An offer that was seen so many seconds after the start of the job, negative before it; it held until the next."""

    at: float
    offer: Offer


@dataclass(frozen=True)
class State:
    """How far a job is: its placement, None while it has no nodes, and seconds of work left on the largest size.

    ``starting`` are the seconds until the placement's first new iteration, ``unsaved`` those of the work that has to be
    repeated if its nodes are released now, ``spent`` is in dollars.
    """

    job: Job
    placement: Placement | None
    work: float
    starting: float = 0.0
    spent: float = 0.0
    unsaved: float = 0.0


@dataclass(frozen=True)
class DecisionClock:
    """Seconds since the job began, and seconds to the next decision, if nothing happens before."""

    elapsed: float
    tick: float = 600.0


@dataclass(frozen=True)
class Start:
    """Request these nodes."""

    placement: Placement
    reason: str


@dataclass(frozen=True)
class Wait:
    """Have no nodes; present ones are released at a checkpoint."""

    reason: str


@dataclass(frozen=True)
class Switch:
    """Request these nodes, and give the present ones back at a checkpoint once they are there."""

    placement: Placement
    reason: str


@dataclass(frozen=True)
class Keep:
    """Go on as it is."""

    reason: str


Decision = Union[Start, Wait, Switch, Keep]
