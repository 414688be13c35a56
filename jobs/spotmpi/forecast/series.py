"""Rates over node counts, whoever measured them: what charts compare and a model is fitted to."""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotmpi.core.errors import input_error

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


_FILE = Path(__file__).with_name("published.toml")
_OVERLAPPED = "double buffering"  # of the exchange of one iteration with the computation of the next


@dataclass(frozen=True)
class PublishedTable:
    """A published table: ``series`` holds iterations/s by nodes for each variant, ``setup`` how it was measured."""

    name: str
    title: str
    source: str
    machine: str
    global_batch: int
    setup: tuple[str, ...]
    series: Mapping[str, Mapping[int, float]]

    def as_series(self) -> list[Series]:
        """Each variant as what a model is fitted to."""
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
    """A claim about scaling and who made it."""

    claim: str
    source: str


@functools.cache
def published_tables() -> dict[str, PublishedTable]:
    """All published tables, by name."""
    found = {}
    for values in tomllib.loads(_FILE.read_text())["tables"]:
        series = {name: {int(nodes): rate for nodes, rate in row.items()} for name, row in values["series"].items()}
        found[values["name"]] = PublishedTable(**{**values, "setup": tuple(values["setup"]), "series": series})
    return found


def published_references() -> list[Reference]:
    """What is known of how far scaling goes elsewhere."""
    return [Reference(**values) for values in tomllib.loads(_FILE.read_text())["references"]]


def published_table(name: str, field: str) -> PublishedTable:
    """The table of that name; InputError for *field* lists the names there are."""
    if name not in published_tables():
        raise input_error(field, name, f"no published table of that name; there are: {', '.join(published_tables())}")
    return published_tables()[name]
