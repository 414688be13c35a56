"""What one attempt of a run runs on, which has another number of nodes than others where the plan allows that. Pure."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from . import protocol
from .launch import node_count
from .plan import Elastic, Role, RunPlan, gang
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


def on_hosts(plan: RunPlan, hosts: List[str]) -> RunPlan:
    """The plan of an attempt on these *hosts*, by node; where it may have fewer nodes, as many as there are."""
    if "elastic" not in plan:
        return {**plan, "hosts": hosts}
    environment = {
        **plan["environment"],
        protocol.ENV_WORLD_SIZE: str(len(hosts) * plan["slots"]),
        protocol.ENV_HOSTS: str(len(set(hosts))),
    }
    ranks: Role = {**gang(plan), "count": len(hosts)}
    rate = plan["rate"]
    if rate is not None and plan.get("backend") != "local":  # where all nodes are one machine
        rate *= len(hosts) / len(plan["hosts"])
    return {**plan, "hosts": hosts, "roles": [ranks], "environment": environment, "rate": rate}


def largest_size(elastic: Elastic, nodes: int) -> Optional[int]:
    """The most allowed nodes of which there are *nodes*; None where there are too few."""
    return max((size for size in elastic["sizes"] if size <= nodes), default=None)


def change_reason(nodes: int, size: int) -> str:
    """Why an attempt on *nodes* ends where *size* of them are there."""
    return "%d nodes are there: continues on %d in place of %d" % (size, size, nodes)


def world_of(plan: RunPlan, attempt: int) -> World:
    """The world of an attempt on all hosts of *plan*."""
    nodes = node_count(plan)
    standby = len(plan.get("standby", []))
    return World(attempt, plan["hosts"][:nodes], plan["slots"], nodes * plan["slots"], plan["rate"], standby)
