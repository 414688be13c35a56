"""What iterations cost."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.budget import Price
from jobs.report.chart import MEASURED, Chart, Curve
from jobs.report.figures import number
from jobs.report.rows import Line, Row
from jobs.report.section import Section

_HOUR = 3600.0


def per_thousand(row: Row, price: Price) -> float | None:
    """Dollars per 1,000 iterations."""
    rate = row.iterations_per_second
    return row.nodes * price.node_hour * 1000 / rate / _HOUR if rate else None


def section(rows: Sequence[Row], names: Sequence[tuple[Line, str]], price: Price | None) -> Section | None:
    """Money per 1,000 iterations and per million samples of each row; None without a price."""
    if price is None:
        return None
    rated = [row for row in rows if row.iterations_per_second]
    known = dict(names)
    cells = tuple((known[row.line], str(row.nodes), *_money(row, price)) for row in rated)
    said = f"A node costs {price}; storage and system nodes come on top."
    header = ("Variant", "Nodes", "$ per 1,000 iterations", "$ per million samples")
    return Section("What it costs", (said,), header, cells, 1, _charts(rated, names, price))


def _money(row: Row, price: Price) -> tuple[str, str]:
    dollars = per_thousand(row, price)
    samples = row.samples_per_second
    return number(dollars), number(row.nodes * price.node_hour * 1e6 / samples / _HOUR if samples else None)


def _charts(rows: Sequence[Row], names: Sequence[tuple[Line, str]], price: Price) -> tuple[Chart, ...]:
    ticks = tuple(sorted({float(row.nodes) for row in rows}))
    if len(ticks) < 2:
        return ()
    curves = []
    for tone, (line, name) in enumerate(names):
        own = sorted((row for row in rows if row.line == line), key=lambda row: row.nodes)
        points = tuple((float(row.nodes), per_thousand(row, price) or 0.0) for row in own)
        curves += [Curve(name, MEASURED, tone, points)] if points else []
    return (Chart("Money", "dollars per 1,000 iterations", "nodes", "$", tuple(curves), ticks),)
