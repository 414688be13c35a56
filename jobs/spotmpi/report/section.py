"""A part of a report beside its main table: what it says, a table, and charts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spotmpi.metrics.intervals import Bounds
from spotmpi.report.chart import Drawing
from spotmpi.report.figures import MISSING, number, share


@dataclass(frozen=True)
class Section:
    """``cells`` has one list per row, as long as ``header``; columns from ``numeric`` on align right.

    ``said`` are sentences above the table, ``listed`` what stands beside the charts as a list.
    Charts that are ``pictured`` are in the picture of the report too.
    """

    title: str
    said: tuple[str, ...]
    header: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    numeric: int = 1
    charts: tuple[Drawing, ...] = ()
    listed: tuple[str, ...] = ()
    pictured: bool = False

    @property
    def right(self) -> list[bool]:
        """For each column whether it aligns right."""
        return [at >= self.numeric for at in range(len(self.header))]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [dict(zip(self.header, row, strict=True)) for row in self.cells]
        return {"title": self.title, "said": self.said, "rows": rows, "listed": self.listed}


def factor(value: float) -> str:
    """A ratio of rates as a factor."""
    return f"\N{MULTIPLICATION SIGN}{value:.3f}"


def bounded(bounds: Bounds | None, as_share: bool = False) -> str:
    """Low to high, as numbers or shares."""
    if bounds is None:
        return MISSING
    return " to ".join((share if as_share else number)(value) for value in (bounds.low, bounds.high))
