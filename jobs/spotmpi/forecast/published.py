"""Published tables of rates and claims about scaling, which charts compare with what was measured. Pure."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotmpi.forecast.model import Series

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
    for values in tomllib.loads(_FILE.read_text(encoding="utf-8"))["tables"]:
        series = {name: {int(nodes): rate for nodes, rate in row.items()} for name, row in values["series"].items()}
        tables[values["name"]] = PublishedTable(**{**values, "setup": tuple(values["setup"]), "series": series})
    return tables


def published_references() -> list[Reference]:
    """Published claims about scaling."""
    return [Reference(**values) for values in tomllib.loads(_FILE.read_text(encoding="utf-8"))["references"]]
