"""The charts of a report, as data. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from spotmpi.agent.protocol import STRONG, WEAK
from spotmpi.metrics.rates import Point
from spotmpi.report.figures import IDEAL, MEASURED, TRACE, XY, BarChart, Chart, Curve, Drawing, time_unit, with_count
from spotmpi.report.report import Report, batch, label
from spotmpi.report.rows import Line, Row

_POINTS = 160  # of a trace; each is the mean of several reports
_TRACES = 4  # rows up to which each has a trace
_LINES = 6  # lines up to which each has a trace
_OFFSET = 0.022  # of the width, between the intervals of two lines
_MOST_OFFSET = 0.3  # of the distance between two counts, for all lines together: a mark has to stay at its own count
_MAX_WITHOUT_LOSS = 3  # charts of a picture; with more, only the page has the loss
_MAX_BARS = 60  # of a chart; with more, only the page has it
_LOG_FROM = 20  # ratio of highest to lowest value from which the axis is logarithmic


def charts(report: Report) -> list[Chart]:
    """The charts of *report*; strong and weak scaling never share one."""
    all_charts = []
    for kind in (STRONG, WEAK, None):
        rows = [row for row in report.rows if row.line.scaling == kind and row.iterations_per_second is not None]
        if len({_x(row, rows) for row in rows}) > 1:
            all_charts.append(_rates(report, rows))
            if any(row.efficiency is not None for row in rows):
                all_charts.append(_efficiencies(report, rows))
    loss = _losses(report)
    return [*all_charts, loss] if loss else all_charts


def picture_charts(report: Report) -> list[Drawing]:
    """The charts of the picture: rates, efficiencies, those of sections and, if there is space, the loss."""
    main = charts(report)
    of_sections: list[Drawing] = [
        chart
        for section in report.sections
        if section.in_picture
        for chart in section.charts
        if not isinstance(chart, BarChart) or len(chart.bars) <= _MAX_BARS
    ]
    traces = [chart for chart in main if chart.is_trace]
    rates: list[Drawing] = [chart for chart in main if not chart.is_trace]
    return [*rates, *of_sections, *(traces if len(rates) + len(of_sections) < _MAX_WITHOUT_LOSS else [])]


def _by_nodes(rows: Sequence[Row]) -> bool:
    return len({row.slots for row in rows}) == 1


def _x(row: Row, rows: Sequence[Row]) -> int:
    return row.nodes if _by_nodes(rows) else row.ranks


def _x_label(rows: Sequence[Row]) -> str:
    if not _by_nodes(rows):
        return "ranks"
    slots = rows[0].slots
    return "nodes" if slots == 1 else f"nodes of {slots} slots"


def _rates(report: Report, rows: Sequence[Row]) -> Chart:
    """Iterations/s over nodes, with the ideal of each variant and the single trials."""
    curves: list[Curve] = []
    for line in _lines(rows):
        own_rows = [row for row in rows if row.line == line]
        name, colour = label(line, report.lines), report.lines.index(line)
        ideal = _ideal(own_rows, rows)
        if ideal:
            curves.append(Curve("ideal", IDEAL, colour, ideal))
        curves.append(
            Curve(
                label=name or "measured",
                kind=MEASURED,
                colour=colour,
                points=tuple((_x(row, rows), row.iterations_per_second or 0.0) for row in own_rows),
                error_bars=tuple((_x(row, rows), row.low, row.high) for row in own_rows if row.low and row.high),
                trials=tuple((_x(row, rows), rate) for row in own_rows for rate in _trials(row)),
                offset=_offset(rows, line),
            )
        )
    subtitle = ", ".join([_kind(rows), *sorted({row.bounds for row in rows if row.low and row.high})])
    return Chart("Iterations per second", subtitle, _x_label(rows), "iterations/s", tuple(curves), _ticks(rows))


def _offset(rows: Sequence[Row], line: Line) -> float:
    """The offset of *line* along x, so that the intervals of several lines do not overlap."""
    lines, ticks = _lines(rows), _ticks(rows)
    smallest = min(right - left for left, right in pairwise(ticks))
    step = min(_OFFSET * (ticks[-1] - ticks[0]), _MOST_OFFSET * smallest / max(len(lines) - 1, 1))
    return (lines.index(line) - (len(lines) - 1) / 2) * step


def _ideal(own_rows: Sequence[Row], rows: Sequence[Row]) -> tuple[XY, ...]:
    """The rate of the base: times the ranks under strong scaling, constant under weak scaling."""
    base = own_rows[0]
    if base.line.scaling is None or len(own_rows) < 2 or base.iterations_per_second is None:
        return ()
    grows = base.line.scaling == STRONG
    return tuple(
        (_x(row, rows), base.iterations_per_second * (row.ranks / base.ranks if grows else 1.0)) for row in own_rows
    )


def _efficiencies(report: Report, rows: Sequence[Row]) -> Chart:
    ticks, lines = _ticks(rows), report.lines
    curves = [Curve("ideal", IDEAL, lines.index(rows[0].line), ((ticks[0], 1.0), (ticks[-1], 1.0)))]
    for line in _lines(rows):
        own_rows = [row for row in rows if row.line == line and row.efficiency is not None]
        points = tuple((float(_x(row, rows)), row.efficiency or 0.0) for row in own_rows)
        error_bars = tuple((float(_x(row, rows)), b.low, b.high) for row in own_rows if (b := row.efficiency_bounds))
        name, colour = label(line, lines) or "measured", lines.index(line)
        curves += [Curve(name, MEASURED, colour, points, error_bars, offset=_offset(rows, line))] if points else []
    bases = {row.base for row in rows if row.base}
    subtitle = f"samples/s per rank relative to {bases.pop()}" if len(bases) == 1 else "samples/s per rank"
    return Chart("Scaling efficiency", subtitle, _x_label(rows), "efficiency", tuple(curves), ticks, percent=True)


def _losses(report: Report) -> Chart | None:
    rows, subtitle = _traced_rows(report)
    traces = [(row, (row.typical or row.runs[0]).training.series.get("loss", [])) for row in rows]
    traces = [(row, points) for row, points in traces if len(points) > 1]
    if not traces:
        return None
    curves = [(with_count(label(row.line, report.lines), row.ranks, "rank"), points) for row, points in traces]
    colours = [report.lines.index(row.line) for row, _ in traces]  # as in the chart of rates
    return time_chart("loss", curves, subtitle, colours if len(set(colours)) == len(colours) else ())


def time_chart(
    name: str, traces: Sequence[tuple[str, Sequence[Point]]], subtitle: str = "", colours: Sequence[int] = ()
) -> Chart:
    """The values of a scalar of this *name* over time, a curve for each of *traces*, which have a label each."""
    longest = max(points[-1].time for _, points in traces)
    unit, size = time_unit(longest)
    curves = [
        Curve(of, TRACE, colour, tuple((x / size, y) for x, y in average(points)))
        for colour, (of, points) in zip(colours or range(len(traces)), traces, strict=True)
    ]
    values = [y for curve in curves for _, y in curve.points]
    log = min(values) > 0 and max(values) / min(values) > _LOG_FROM
    title = f"{name.replace('_', ' ').capitalize()} over time"
    return Chart(title, subtitle, f"{unit} since the first report", name, tuple(curves), log=log)


def _traced_rows(report: Report) -> tuple[list[Row], str]:
    """The rows whose loss is drawn, at most a few, and which those are, as text."""
    several = any(len(row.runs) > 1 for row in report.rows)
    of_each = ", the run nearest to the median rate" if several else ""
    if len(report.rows) <= _TRACES:
        return report.rows, f"training loss{of_each}"
    most_ranks = [
        max((row for row in report.rows if row.line == line), key=lambda row: row.ranks) for line in report.lines
    ]
    if len(most_ranks) == 1:
        middle = report.rows[:: math.ceil(len(report.rows) / _TRACES)]
        return list(dict.fromkeys([*middle, most_ranks[0]])), f"training loss of some rows{of_each}"
    left_out = f", {_LINES} of {len(most_ranks)} variants" if len(most_ranks) > _LINES else ""
    return most_ranks[:_LINES], f"training loss at the most ranks{left_out}{of_each}"


def average(points: Sequence[Point]) -> list[XY]:
    """*points* as (seconds, value), averaged to at most `_POINTS` points."""
    size = math.ceil(len(points) / _POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(p.time for p in group) / len(group), sum(p.value for p in group) / len(group)) for group in groups]


def _lines(rows: Sequence[Row]) -> list[Line]:
    return list(dict.fromkeys(row.line for row in rows))


def _ticks(rows: Sequence[Row]) -> tuple[float, ...]:
    return tuple(sorted({float(_x(row, rows)) for row in rows}))


def _trials(row: Row) -> list[float]:
    rates = [rate for run in row.runs if (rate := run.iterations_per_second) is not None]
    return rates if len(rates) > 1 else []


def _kind(rows: Sequence[Row]) -> str:
    lines = _lines(rows)
    kind = {STRONG: "strong scaling", WEAK: "weak scaling", None: "unknown samples per iteration"}[lines[0].scaling]
    batches = {batch(line) for line in lines}
    return f"{kind}, {batches.pop()}" if len(batches) == 1 and lines[0].scaling else kind
