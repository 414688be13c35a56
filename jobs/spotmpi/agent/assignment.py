"""Which pod of a run does the work of which member, where pods stand by for nodes that are lost. Pure.

Pods are named by the member that they are at the beginning: a node, or one that stands by. Each does the work of that
member until one that stands by is promoted: it exchanges its work with the pod of the lost node, whose next pod then
stands by. Node 0 keeps its pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Dict, List, NamedTuple, Optional

from .plan import COORDINATOR, NODE, STANDBY, Member


class ExpectedPods(NamedTuple):
    """The pods that may join node 0: those of all *nodes* with itself, and as many that stand by as *standby* says.

    All have the same *restart_count*. Where that is None, pods are replaced one by one, and each name has its own.
    """

    nodes: int
    restart_count: Optional[int] = None
    standby: int = 0


class Promotion(NamedTuple):
    """A pod that stood by and does the work of a node now."""

    node: Member
    pod: Member
    replaced: Member  # the pod that did it before
    standby: Member  # where the promoted pod stood by


class Assignment:
    """The pod of each member, of *nodes* and of those that stand by, as many as *standby*.

    *at_work* are the pods that did the work of the nodes in the last attempt, if there was one; others than *nodes*
    pods of this run, with that of node 0 first, are ignored.
    """

    def __init__(self, nodes: int, standby: int, at_work: Optional[Sequence[Member]]) -> None:
        gang = [Member(NODE, index) for index in range(nodes)]
        others = [Member(STANDBY, index) for index in range(standby)]
        members, working = [*gang, *others], list(at_work or ())
        distinct = set(working)
        if not (len(working) == len(distinct) == nodes and working[0] == COORDINATOR and distinct <= set(members)):
            working = gang  # the record is of another size, or damaged
        pods = working + [pod for pod in members if pod not in working]
        self.pods: Dict[Member, Member] = dict(zip(members, pods))  # noqa: B905 (Python 3.8 has no strict)

    @property
    def at_work(self) -> List[Member]:
        """The pods that do the work of the nodes."""
        return [pod for member, pod in self.pods.items() if member.role == NODE]

    def of(self, pod: Member) -> Member:
        """The member whose work a pod does."""
        return next(member for member, each in self.pods.items() if each == pod)

    def promote(self, vacant: Iterable[Member], ready: Collection[Member]) -> List[Promotion]:
        """Assign *vacant* nodes to pods that stand by, as far as there are any in *ready*."""
        promotions = []
        for node, member in zip(sorted(vacant), sorted(ready)):  # noqa: B905 (Python 3.8 has no strict)
            pod, replaced = self.pods[member], self.pods[node]
            self.pods[node], self.pods[member] = pod, replaced
            promotions.append(Promotion(node, pod, replaced, member))
        return promotions
