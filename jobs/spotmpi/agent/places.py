"""Which pod of a run does the work of which node, where pods stand by for nodes that are lost. Pure.

Pods are numbered: first those that the run begins with as its nodes, then those that stand by. A place has the number
of a node, or a higher one where its pod stands by. Each pod has the place of its own number until one that stands by
is promoted: it exchanges its place with the pod of the lost node, whose next pod then stands by. Node 0 stays pod 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import List, NamedTuple, Optional


class Promotion(NamedTuple):
    """A pod that stood by and does the work of a node now."""

    node: int
    pod: int
    replaced: int  # the pod that did it before
    place: int  # where the promoted pod stood by


class Places:
    """The pod of each place, of *nodes* and of as many that stand by as there are more *pods*.

    *at_work* are the pods that did the work of the nodes in the last attempt, if there was one.
    """

    def __init__(self, nodes: int, pods: int, at_work: Optional[Sequence[int]] = None) -> None:
        self.nodes = nodes
        known = list(at_work or ())
        if len(known) != nodes or known[0] != 0 or not set(known) <= set(range(pods)) or len(set(known)) < nodes:
            known = list(range(nodes))
        self.pods: List[int] = known + [pod for pod in range(pods) if pod not in known]

    @property
    def at_work(self) -> List[int]:
        """The pods that do the work of the nodes."""
        return self.pods[: self.nodes]

    def of(self, pod: int) -> int:
        """The place of a pod."""
        return self.pods.index(pod)

    def promote(self, vacant: Iterable[int], ready: Collection[int]) -> List[Promotion]:
        """Fill *vacant* nodes, as many as there are places in *ready*, whose pods stand by."""
        promotions = []
        for node, place in zip(sorted(vacant), sorted(ready)):  # noqa: B905 (Python 3.8 has no strict)
            pod, replaced = self.pods[place], self.pods[node]
            self.pods[node], self.pods[place] = pod, replaced
            promotions.append(Promotion(node, pod, replaced, place))
        return promotions
