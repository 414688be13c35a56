"""What one attempt of a run runs on. Pure."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from .launch import node_count
from .plan import RunPlan
from .schema import WorldRecord


class World(NamedTuple):
    """The members of an attempt, how many ranks each has, and what all of them cost."""

    attempt: int
    members: List[str]  # hosts by node index
    ranks: int  # of each member
    size: int  # ranks in all
    rate: Optional[float]  # US dollars per hour of all nodes, where known

    def record(self) -> WorldRecord:
        """As the record of the attempt holds it."""
        return {"members": self.members, "ranks": self.ranks, "size": self.size, "rate": self.rate}


def world_of(plan: RunPlan, attempt: int) -> World:
    """The world of an attempt on all hosts of *plan*."""
    nodes = node_count(plan)
    return World(attempt, plan["hosts"][:nodes], plan["slots"], nodes * plan["slots"], plan["rate"])
