"""What iterations cost."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.report.chart import MEASURED, Chart, Curve
from spotmpi.report.figures import number
from spotmpi.report.rows import Line, Row
from spotmpi.report.section import Section
from spotmpi.study.budget import Budget

_HOUR = 3600.0


def per_thousand(row: Row, budget: Budget) -> float | None:
    """Dollars per 1,000 iterations, each row at the price of its own nodes."""
    return _per(row, budget, 1000, row.iterations_per_second)


def section(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> Section | None:
    """Money per 1,000 iterations and per million samples of each row; None without a price."""
    rated = [row for row in rows if row.iterations_per_second]
    priced = [row for row in rated if budget.price_of(row.line.variant, row.nodes)]
    if not priced:
        return None
    cells = tuple(_cells(row, dict(names)[row.line], budget) for row in priced)
    costs = "; ".join(map(str, budget.told))
    said = f"A node costs {costs}; storage and system nodes come on top."
    header = ("Variant", "Nodes", "$ per node-hour", "$ per 1,000 iterations", "$ per million samples")
    return Section("What it costs", (said,), header, cells, 1, _charts(priced, names, budget))


def _cells(row: Row, name: str, budget: Budget) -> tuple[str, ...]:
    price = budget.price_of(row.line.variant, row.nodes)
    dollars, samples = per_thousand(row, budget), _per(row, budget, 1e6, row.samples_per_second)
    return (name, str(row.nodes), number(price.node_hour if price else None), number(dollars), number(samples))


def _per(row: Row, budget: Budget, count: float, rate: float | None) -> float | None:
    """Dollars for so many of what is made at a *rate* per second."""
    price = budget.price_of(row.line.variant, row.nodes)
    return row.nodes * price.node_hour * count / rate / _HOUR if price and rate else None


def _charts(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> tuple[Chart, ...]:
    ticks = tuple(sorted({float(row.nodes) for row in rows}))
    if len(ticks) < 2:
        return ()
    curves = []
    for tone, (line, name) in enumerate(names):
        own = sorted((row for row in rows if row.line == line), key=lambda row: row.nodes)
        points = tuple((float(row.nodes), per_thousand(row, budget) or 0.0) for row in own)
        curves += [Curve(name, MEASURED, tone, points)] if points else []
    return (Chart("Money", "dollars per 1,000 iterations", "nodes", "$", tuple(curves), ticks),)
