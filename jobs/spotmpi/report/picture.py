"""The charts of a report as one picture, for a README."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.printable import printable
from spotmpi.report.chart import (
    IDEAL,
    LABEL_THRESHOLD,
    MEASURED,
    TRACE,
    Bar,
    BarChart,
    Chart,
    Curve,
    Drawing,
    bar_chart_axis,
    x_axis,
    y_axis,
)
from spotmpi.report.charts import charts
from spotmpi.report.figures import share, tick
from spotmpi.report.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# They differ in lightness too, for colour-blind readers and monochrome printers.
_COLOURS = ("#0067a6", "#c44e00", "#00805c", "#a8437e", "#6b5b00", "#4c4fa8")
_MARKS = ("o", "s", "D", "^")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 2)), (0, (5, 2, 1, 2)))
_TEXT, _SOFT, _RULE = "#16202c", "#556273", "#dfe4ea"
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": _TEXT}
_TIGHT: dict[str, Any] = {"handlelength": 1.0, "columnspacing": 1.0, "handletextpad": 0.5}
_BACKING: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_CHART_WIDTH, _CHART_HEIGHT = (
    4.9,
    3.5,
)  # width and height of one chart: two in a row are readable at the width of a README
_BAR, _LINE = 0.42, 0.17  # heights of a bar and of a line of its name
_COLUMNS = 2
_MAX_NAME = 48  # letters of the longest name in a legend, that a chart is wide enough for
_SUBTITLE = 62  # letters of a subtitle in one line
_MAX_WITHOUT_LOSS = 3  # charts; with more, only the page has the loss
_MAX_BARS = 60  # of a chart; with more, only the page has it


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


def draw(report: Report, path: Path) -> None:
    """Write the charts as a PNG, two in a row; SpotmpiError if there are none."""
    drawings = picture_charts(report)
    if not drawings:
        raise SpotmpiError("no picture: too few iterations were measured for a chart, and no loss was reported")
    from matplotlib import rc_context

    columns = min(len(drawings), _COLUMNS)
    rows = [drawings[at : at + columns] for at in range(0, len(drawings), columns)]
    # Dollars in a name are no formula, and a letter that the font lacks is drawn as a box.
    with rc_context({"text.parse_math": False}), warnings.catch_warnings(action="ignore"):
        _figure(rows, columns).savefig(path, format="png")


def _figure(rows: Sequence[Sequence[Drawing]], columns: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.05)
    heights = [max(map(_height, row)) for row in rows]
    figure = Figure(figsize=(_CHART_WIDTH * columns, sum(heights)), dpi=160, layout=spacing, facecolor="white")
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for down, row in enumerate(rows):
        for at, chart in enumerate(row):
            # The last one of an odd number takes the whole row.
            axes = figure.add_subplot(grid[down, at] if len(row) == columns else grid[down, :])
            _bars(axes, chart) if isinstance(chart, BarChart) else _draw(axes, chart)
    return figure


def _height(chart: Drawing) -> float:
    return (
        max(_CHART_HEIGHT, 1.2 + (_BAR + _LINE * chart.longest_name) * len(chart.bars))
        if isinstance(chart, BarChart)
        else _CHART_HEIGHT
    )


def _draw(axes: Axes, chart: Chart) -> None:
    x, y = x_axis(chart), y_axis(chart)
    for curve in chart.curves:
        _curve(axes, curve.shifted)
    if chart.log:
        axes.set_yscale("log")
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    axes.set_xticks(x.ticks, [tick(at) for at in x.ticks])
    axes.set_yticks(y.ticks, [tick(at, chart.percent) for at in y.ticks])
    axes.minorticks_off()
    axes.set_xlabel(chart.x_label, color=_SOFT)
    axes.set_ylabel(chart.y_label + (" (log)" if chart.log else ""), color=_SOFT)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    _frame(axes, chart)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), **_LEGEND).set_in_layout(False)  # long names squeeze no chart


def _frame(axes: Axes, chart: Drawing) -> None:
    """Title, subtitle and a minimal frame."""
    lines = textwrap.wrap(printable(chart.subtitle), _SUBTITLE, max_lines=2, placeholder=" ...")
    axes.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", color=_TEXT, pad=11 + 11 * len(lines))
    axes.annotate("\n".join(lines), (0, 1), (0, 7), "axes fraction", "offset points", fontsize=8.5, color=_SOFT)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, labelsize=9, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)


def _bars(axes: Axes, chart: BarChart) -> None:
    x = bar_chart_axis(chart)
    for at, (bar, lines) in enumerate(zip(chart.bars, chart.names, strict=True)):
        axes.text(x.low, at - 0.22, "\n".join(lines), fontsize=9, color=_TEXT, va="bottom", bbox=_BACKING)
        _interval(axes, bar, at + 0.12) if bar.value is not None else _parts(axes, bar, at + 0.05)
    if chart.mark is not None:
        axes.axvline(chart.mark, color=_SOFT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(len(chart.bars) - 0.5, -0.7)
    axes.set_xticks(x.ticks, [tick(at, chart.percent) for at in x.ticks])
    axes.set_yticks([])
    axes.set_xlabel(chart.x_label, color=_SOFT)
    axes.grid(axis="x", color=_RULE, linewidth=0.8)
    _frame(axes, chart)
    for colour, name in chart.legend:
        axes.barh([0], [0], color=_colour(colour), label=name)
    if chart.legend:
        axes.legend(loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=len(chart.legend), **_TIGHT, **_LEGEND)


def _parts(axes: Axes, bar: Bar, at: float) -> None:
    until = 0.0
    for colour, size in bar.parts:
        axes.barh([at], [size], left=until, height=0.4, color=_colour(colour))
        if size >= LABEL_THRESHOLD:
            axes.text(until + size / 2, at, share(size, 0), fontsize=8.5, color="white", ha="center", va="center")
        until += size


def _interval(axes: Axes, bar: Bar, at: float) -> None:
    assert bar.value is not None
    colour, alpha = _colour(bar.colour), 0.5 if bar.muted else 1.0
    axes.plot([bar.value], [at], color=colour, marker="o", markersize=7, alpha=alpha, zorder=3)
    if bar.bounds:
        axes.hlines(at, *bar.bounds, color=colour, linewidth=1.7, alpha=alpha)
        axes.vlines(bar.bounds, at - 0.09, at + 0.09, color=colour, linewidth=1.7, alpha=alpha)


def _colour(colour: int) -> str:
    return _COLOURS[colour % len(_COLOURS)]


def _curve(axes: Axes, curve: Curve) -> None:
    colour, name = _colour(curve.colour), printable(curve.label, _MAX_NAME)
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    if curve.kind == IDEAL:
        axes.plot(xs, ys, color=colour, linestyle=(0, (4, 3)), linewidth=1.1, alpha=0.7, label=name)
        return
    if curve.kind == TRACE:
        dash = _DASHES[curve.colour % len(_DASHES)]
        axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.5, label=name)
        return
    assert curve.kind == MEASURED
    mark = _MARKS[curve.colour % len(_MARKS)]
    axes.plot(xs, ys, color=colour, marker=mark, markersize=6, linewidth=1.7, label=name, zorder=3)
    if curve.error_bars:
        low = [y - bar[1] for y, bar in zip(_bar_values(curve), curve.error_bars, strict=True)]
        high = [bar[2] - y for y, bar in zip(_bar_values(curve), curve.error_bars, strict=True)]
        axes.errorbar(
            [bar[0] for bar in curve.error_bars],
            _bar_values(curve),
            (low, high),
            fmt="none",
            ecolor=colour,
            capsize=3,
        )
    axes.scatter([x for x, _ in curve.trials], [y for _, y in curve.trials], color=colour, s=9, alpha=0.5, zorder=2)


def _bar_values(curve: Curve) -> list[float]:
    """The value of the curve at each of its error bars."""
    values = dict(curve.points)
    return [values[x] for x, _, _ in curve.error_bars]
