"""Rates over node counts, whoever measured them: what charts compare and a model is fitted to. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EFFICIENCY_LIMIT = 1.05


@dataclass(frozen=True)
class Series:
    """One way of working over node counts.

    ``rates`` holds iterations/s of each trial by nodes; ``silent`` the same without the exchange of gradients.
    ``strong`` says that the global batch stays the same. ``serial`` is the share of the computation that cannot overlap
    with the exchange: 1 without overlap. ``batch`` is the global one under strong scaling, else that of one node;
    ``samples`` are those of an epoch.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    strong: bool = True
    serial: float = 1.0
    silent: Mapping[int, Sequence[float]] | None = None
    batch: int | None = None
    samples: int | None = None

    @property
    def nodes(self) -> list[int]:
        """The node counts with a rate, in order."""
        return sorted(self.rates)

    def rate(self, nodes: int) -> float:
        """The median rate at a measured count, iterations/s."""
        return statistics.median(self.rates[nodes])

    def efficiency(self, nodes: int, rate: float) -> float:
        """*rate* at so many nodes per node, over that of the smallest measured count."""
        base = self.nodes[0]
        ideal = self.rate(base) * (nodes / base if self.strong else 1.0)
        return rate / ideal

    def warnings(self) -> list[str]:
        """What of the measured rates should not be taken at its word."""
        found = []
        for nodes in self.nodes[1:]:
            efficiency = self.efficiency(nodes, self.rate(nodes))
            if efficiency > EFFICIENCY_LIMIT:
                found.append(
                    f"{self.name}, {nodes} nodes: efficiency {efficiency:.1%} against {self.nodes[0]} nodes is above "
                    f"{EFFICIENCY_LIMIT:.0%}; the base was slow or the work not the same".replace("%", " %")
                )
        return found
