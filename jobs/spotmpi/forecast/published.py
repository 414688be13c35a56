"""Results that others published, to stand beside ours."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotmpi.core.errors import input_error
from spotmpi.forecast.series import Series

_FILE = Path(__file__).with_suffix(".toml")
_OVERLAPPED = "double buffering"  # of the exchange of one iteration with the computation of the next


@dataclass(frozen=True)
class Table:
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
def tables() -> dict[str, Table]:
    """All published tables, by name."""
    found = {}
    for values in tomllib.loads(_FILE.read_text())["tables"]:
        series = {name: {int(nodes): rate for nodes, rate in row.items()} for name, row in values["series"].items()}
        found[values["name"]] = Table(**{**values, "setup": tuple(values["setup"]), "series": series})
    return found


def references() -> list[Reference]:
    """What is known of how far scaling goes elsewhere."""
    return [Reference(**values) for values in tomllib.loads(_FILE.read_text())["references"]]


def table(name: str, field: str) -> Table:
    """The table of that name; InputError for *field* lists the names there are."""
    if name not in tables():
        raise input_error(field, name, f"no published table of that name; there are: {', '.join(tables())}")
    return tables()[name]
