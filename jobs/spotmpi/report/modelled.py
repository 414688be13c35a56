"""The model beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.forecast.model import Model, fit
from spotmpi.forecast.series import Series
from spotmpi.report.chart import MEASURED, TRACE, Chart, Curve
from spotmpi.report.figures import MISSING, number, share
from spotmpi.report.section import Section

_HEADER = ("Variant", "Nodes", "Measured", "Model", "95 % interval", "Error", "Verdict")
_FURTHER = 2  # times the largest measured count is as far as the curve goes


def section(series: Sequence[Series]) -> Section | None:
    """A model of each series that was measured at three counts or more: with two, nothing is left to check it by."""
    models = [fit(each) for each in series if len(each.nodes) > 2]
    if not models:
        return None
    several = len(models) > 1
    notes = [f"{model.series.name}: {note}" if several else note for model in models for note in model.notes]
    said = (
        "Fitted to the smaller half of the node counts and held against the others; above an error of 10 % the model "
        "is not valid. `spotmpi predict` asks it for more.",
        *(f"{note}." for note in notes),
    )
    cells = tuple(_cells(model, nodes) for model in models for nodes in model.series.nodes)
    return Section("Model and measurement", said, _HEADER, cells, 1, (_chart(models),))


def _cells(model: Model, nodes: int) -> tuple[str, ...]:
    made = model.predict(nodes)
    interval = MISSING if made.low is None else f"{number(made.low)} to {number(made.high)}"
    measured, error = number(made.measured), share(made.error)
    return (model.series.name, str(nodes), measured, number(made.rate), interval, error, made.verdict)


def _chart(models: Sequence[Model]) -> Chart:
    curves, ticks = [], sorted({float(nodes) for model in models for nodes in model.series.nodes})
    for tone, model in enumerate(models):
        series, last = model.series, model.series.nodes[-1] * _FURTHER
        line = tuple((float(nodes), model.predict(nodes).rate) for nodes in range(series.nodes[0], last + 1))
        points = tuple((float(nodes), series.rate(nodes)) for nodes in series.nodes)
        curves += [Curve(f"{series.name}, model", TRACE, tone, line), Curve(series.name, MEASURED, tone, points)]
    ticks.append(max(x for curve in curves for x, _ in curve.points))
    subtitle = "lines: model; marks: measured"
    return Chart("Model and measurement", subtitle, "nodes", "iterations/s", tuple(curves), tuple(ticks))
