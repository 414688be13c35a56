"""The charts of a report as one picture, for a README."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.errors import SpotmpiError
from jobs.report.axes import x_axis, y_axis
from jobs.report.chart import IDEAL, MEASURED, TRACE, Chart, Curve
from jobs.report.charts import charts
from jobs.report.figures import tick
from jobs.report.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Chosen to differ in lightness as well, so that they stay apart for any eye and in print.
_TONES = ("#0067a6", "#c44e00", "#00805c", "#a8437e", "#6b5b00", "#4c4fa8")
_MARKS = ("o", "s", "D", "^")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 2)), (0, (5, 2, 1, 2)))
_TEXT, _SOFT, _RULE = "#16202c", "#556273", "#dfe4ea"
_INCH = 4.6  # width of one chart
_ACROSS = 3  # charts in a row


def draw(report: Report, path: Path) -> None:
    """Write the charts side by side as a PNG; SpotmpiError where there is nothing to draw."""
    drawn = charts(report)
    if not drawn:
        raise SpotmpiError("no picture: too few iterations were measured for a chart, and no loss was reported")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.04)
    across = min(len(drawn), _ACROSS)
    down = math.ceil(len(drawn) / _ACROSS)
    figure = Figure(figsize=(_INCH * across, 4.1 * down), dpi=150, layout=spacing, facecolor="white")
    for index, chart in enumerate(drawn):
        _draw(figure.add_subplot(down, across, index + 1), chart)
    figure.savefig(path, format="png")


def _draw(axes: Axes, chart: Chart) -> None:
    x, y = x_axis(chart), y_axis(chart)
    for curve in chart.curves:
        _curve(axes, curve)
    if chart.log:
        axes.set_yscale("log")
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    axes.set_xticks(x.ticks, [tick(at) for at in x.ticks])
    axes.set_yticks(y.ticks, [tick(at, chart.percent) for at in y.ticks])
    axes.minorticks_off()
    axes.set_xlabel(chart.x_label, color=_SOFT)
    axes.set_ylabel(chart.y_label + (" (log)" if chart.log else ""), color=_SOFT)
    axes.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", color=_TEXT, pad=22)
    axes.text(0, 1.025, chart.subtitle, transform=axes.transAxes, fontsize=8.5, color=_SOFT)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, labelsize=9, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), frameon=False, fontsize=8.5, labelcolor=_TEXT)


def _curve(axes: Axes, curve: Curve) -> None:
    colour = _TONES[curve.tone % len(_TONES)]
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    if curve.kind == IDEAL:
        axes.plot(xs, ys, color=colour, linestyle=(0, (4, 3)), linewidth=1.1, alpha=0.7, label=curve.label)
        return
    if curve.kind == TRACE:
        dash = _DASHES[curve.tone % len(_DASHES)]
        axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.5, label=curve.label)
        return
    assert curve.kind == MEASURED
    mark = _MARKS[curve.tone % len(_MARKS)]
    axes.plot(xs, ys, color=colour, marker=mark, markersize=6, linewidth=1.7, label=curve.label, zorder=3)
    if curve.bars:
        low = [y - bar[1] for y, bar in zip(_at(curve), curve.bars, strict=True)]
        high = [bar[2] - y for y, bar in zip(_at(curve), curve.bars, strict=True)]
        axes.errorbar([bar[0] for bar in curve.bars], _at(curve), (low, high), fmt="none", ecolor=colour, capsize=3)
    axes.scatter([x for x, _ in curve.trials], [y for _, y in curve.trials], color=colour, s=9, alpha=0.5, zorder=2)


def _at(curve: Curve) -> list[float]:
    """The curve's value at each of its bars."""
    values = dict(curve.points)
    return [values[x] for x, _, _ in curve.bars]
