"""Rates over node counts, measured or published: what charts compare and a model is fitted to. Pure."""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EFFICIENCY_LIMIT = 1.05


@dataclass(frozen=True)
class Series:
    """The rates of one variant over node counts.

    ``rates`` holds iterations/s of each trial by nodes, ``without_allreduce`` those of trials without the allreduce of
    gradients. ``strong`` means strong scaling: the global batch is constant. ``serial`` is the share of the computation
    that cannot overlap with the allreduce (1 without overlap). ``batch`` is the global one under strong scaling, else
    that of one node; ``samples`` are those of an epoch. ``variant`` is the name of the variant in its sweep.
    ``preparation`` is the least seconds in which the workers of a stream prepare the batches of an iteration, under
    weak scaling those of one node; 0 without a stream.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    strong: bool = True
    serial: float = 1.0
    without_allreduce: Mapping[int, Sequence[float]] | None = None
    batch: int | None = None
    samples: int | None = None
    variant: str = ""
    preparation: float = 0.0

    @property
    def nodes(self) -> list[int]:
        """The node counts with a rate, in order."""
        return sorted(self.rates)

    def rate(self, nodes: int) -> float:
        """The median rate at a measured count, iterations/s."""
        return statistics.median(self.rates[nodes])

    def preparation_on(self, nodes: int) -> float:
        """The least seconds of an iteration on so many nodes for the workers of a stream, whose number stays."""
        return self.preparation * (1 if self.strong else nodes)

    def efficiency(self, nodes: int, rate: float) -> float:
        """*rate* at so many nodes per node, over that of the smallest measured count."""
        base = self.nodes[0]
        ideal = self.rate(base) * (nodes / base if self.strong else 1.0)
        return rate / ideal

    def warnings(self) -> list[str]:
        """Implausible measured rates."""
        warnings = []
        for nodes in self.nodes[1:]:
            efficiency = self.efficiency(nodes, self.rate(nodes))
            if efficiency > EFFICIENCY_LIMIT:
                warnings.append(
                    f"{self.name}, {nodes} nodes: efficiency {efficiency:.1%} against {self.nodes[0]} nodes is above "
                    f"{EFFICIENCY_LIMIT:.0%}: slow base, or different work".replace("%", " %")
                )
        return warnings


_FILE = Path(__file__).with_name("published.toml")
_OVERLAPPED = "double buffering"  # of the allreduce of one iteration with the computation of the next


@dataclass(frozen=True)
class PublishedTable:
    """A published table: ``series`` holds iterations/s by nodes for each variant, ``setup`` the conditions."""

    name: str
    title: str
    source: str
    machine: str
    global_batch: int
    setup: tuple[str, ...]
    series: Mapping[str, Mapping[int, float]]

    def as_series(self) -> list[Series]:
        """Each variant as a series."""
        return [
            Series(
                name,
                {nodes: [rate] for nodes, rate in rates.items()},
                serial=0.0 if _OVERLAPPED in name else 1.0,
                batch=self.global_batch,
            )
            for name, rates in self.series.items()
        ]


@dataclass(frozen=True)
class Reference:
    """A published claim about scaling, and its source."""

    claim: str
    source: str


@functools.cache
def published_tables() -> dict[str, PublishedTable]:
    """All published tables, by name."""
    tables = {}
    for values in tomllib.loads(_FILE.read_text())["tables"]:
        series = {name: {int(nodes): rate for nodes, rate in row.items()} for name, row in values["series"].items()}
        tables[values["name"]] = PublishedTable(**{**values, "setup": tuple(values["setup"]), "series": series})
    return tables


def published_references() -> list[Reference]:
    """Published claims about scaling."""
    return [Reference(**values) for values in tomllib.loads(_FILE.read_text())["references"]]
