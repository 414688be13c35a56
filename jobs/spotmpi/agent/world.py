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
    rate: Optional[float]  # US dollars per hour of all nodes and pods that stand by, where known
    standby: int = 0  # pods that stand by
    pods: Optional[List[int]] = None  # the numbers of the pods of all nodes, where some stand by

    def record(self) -> WorldRecord:
        """As the record of the attempt holds it."""
        values: WorldRecord = {"members": self.members, "ranks": self.ranks, "size": self.size, "rate": self.rate}
        if self.standby:
            values["standby"] = self.standby
        if self.pods is not None:
            values["pods"] = self.pods
        return values


def world_of(plan: RunPlan, attempt: int) -> World:
    """The world of an attempt on all hosts of *plan*."""
    nodes = node_count(plan)
    standby = len(plan.get("standby", []))
    return World(attempt, plan["hosts"][:nodes], plan["slots"], nodes * plan["slots"], plan["rate"], standby)
