"""The rates of a report over node counts: as series, compared with a model and with published results. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from spotmpi.forecast.model import Model, fit
from spotmpi.forecast.series import PublishedTable, Series, published_references
from spotmpi.report.chart import MEASURED, TRACE, Chart, Curve
from spotmpi.report.figures import MISSING, number, share
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row
from spotmpi.report.trial_results import STRONG, WEAK, TrialResult


def series_of(report: Report) -> list[Series]:
    """A series for each line and number of slots with at least two measured node counts."""
    series_ = []
    for line in report.lines:
        own = [row for row in report.rows if row.line == line and row.iterations_per_second]
        for slots in dict.fromkeys(row.slots for row in own):
            rows = [row for row in own if row.slots == slots]
            if len(rows) > 1 and line.scaling in (STRONG, WEAK):
                several = len({row.slots for row in own}) > 1
                name = label(line, report.lines) or report.title
                series_.append(
                    _series(f"{name}, {slots} slots" if several else name, line, rows, report.without_allreduce)
                )
    return series_


def _series(
    name: str, line: Line, rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]
) -> Series:
    """The rates of a line over node counts, as the model takes them."""
    first = rows[0].runs[0]
    strong = line.scaling == STRONG
    samples = first.training.context.get("samples")
    without = {row.nodes: _trial_rates(without_allreduce.get((line.variant, row.nodes), ())) for row in rows}
    return Series(
        name,
        {row.nodes: _trial_rates(row.runs) for row in rows},
        strong=strong,
        serial=first.serial,
        without_allreduce={nodes: rates for nodes, rates in without.items() if rates} or None,
        batch=line.batch if strong or line.batch is None else line.batch * rows[0].slots,
        samples=samples if isinstance(samples, int) else None,
        variant=line.variant,
        preparation=_preparation(rows, strong),
    )


def _preparation(rows: Sequence[Row], strong: bool) -> float:
    """The least seconds in which the workers of a stream prepare an iteration, under weak scaling that of one node."""
    seconds = [
        (1 - run.stream.workers_wait) / rate / (1 if strong else row.nodes)
        for row in rows
        for run in row.runs
        if run.stream and (rate := run.iterations_per_second)
    ]
    return statistics.median(seconds) if seconds else 0.0


def _trial_rates(runs: Iterable[TrialResult]) -> list[float]:
    return [rate for run in runs if (rate := run.iterations_per_second)]


_MODEL_HEADER = ("Variant", "Nodes", "Measured", "Model", "95 % interval", "Error", "Verdict")
_CURVE_RANGE = 2  # the curve ends at so many times the largest measured count


def model_section(series: Sequence[Series]) -> Section | None:
    """A model of each series with at least three measured counts: with two, there is none left to check it."""
    models = [fit(each) for each in series if len(each.nodes) > 2]
    if not models:
        return None
    several = len(models) > 1
    notes = [f"{model.series.name}: {note}" if several else note for model in models for note in model.notes]
    text = (
        "Fitted to the smaller half of the node counts and checked against the others; with an error above 10 % the "
        "model is not valid. See `spotmpi predict` for other counts.",
        *(f"{note}." for note in notes),
    )
    cells = tuple(_model_cells(model, nodes) for model in models for nodes in model.series.nodes)
    return Section("Scaling model", text, _MODEL_HEADER, cells, 1, (_model_chart(models),))


def _model_cells(model: Model, nodes: int) -> tuple[str, ...]:
    prediction = model.predict(nodes)
    interval = MISSING if prediction.low is None else f"{number(prediction.low)} to {number(prediction.high)}"
    measured, error = number(prediction.measured), share(prediction.error)
    return (model.series.name, str(nodes), measured, number(prediction.rate), interval, error, prediction.verdict)


def _model_chart(models: Sequence[Model]) -> Chart:
    curves, ticks = [], sorted({float(nodes) for model in models for nodes in model.series.nodes})
    for colour, model in enumerate(models):
        series, last = model.series, model.series.nodes[-1] * _CURVE_RANGE
        line = tuple((float(nodes), model.predict(nodes).rate) for nodes in range(series.nodes[0], last + 1))
        points = tuple((float(nodes), series.rate(nodes)) for nodes in series.nodes)
        curves += [Curve(f"{series.name}, model", TRACE, colour, line), Curve(series.name, MEASURED, colour, points)]
    ticks.append(max(x for curve in curves for x, _ in curve.points))
    subtitle = "lines: model; marks: measured"
    return Chart("Scaling model", subtitle, "nodes", "iterations/s", tuple(curves), tuple(ticks))


_PUBLISHED_HEADER = ("Variant", "Nodes", "Iterations/s", "Efficiency", "Source")
_OURS = "ours"


def published_section(
    series: Sequence[Series], table: PublishedTable, conditions: Sequence[tuple[str, str]]
) -> Section:
    """Compares a published *table* with our *series*, measured under *conditions*."""
    theirs = table.as_series()
    labelled = [(f"{_OURS}: {each.name}", each) for each in series] + [(each.name, each) for each in theirs]
    cells = tuple(
        (each.name, str(nodes), number(each.rate(nodes)), share(each.efficiency(nodes, each.rate(nodes))), source)
        for source, group in ((_OURS, series), (table.title, theirs))
        for each in group
        for nodes in each.nodes
    )
    text = (
        f"{table.title}: {table.source}. Efficiency of each row is relative to its own smallest node count.",
        "Other published claims: "
        + "; ".join(f"{each.claim} ({each.source})" for each in published_references())
        + ".",
    )
    warnings = tuple(f"Published, {text}" for each in theirs for text in each.warnings())
    differences = (*(f"Theirs: {fact}." for fact in table.setup), *_our_setup(series, table, conditions), *warnings)
    charts = (_published_chart(labelled, False), _published_chart(labelled, True))
    return Section("Comparison with published results", text, _PUBLISHED_HEADER, cells, 1, charts, differences)


def _our_setup(series: Sequence[Series], table: PublishedTable, conditions: Sequence[tuple[str, str]]) -> list[str]:
    shown = ("Program", "Machine", "GPUs", "Data", "Versions")
    differences = [f"Ours: {name.lower()} {value}." for name, value in conditions if name in shown]
    for each in series:
        kind = "global batch" if each.strong else "batch per node"
        if each.batch != table.global_batch or not each.strong:
            differences.append(
                f"Different work: {each.name} has {kind} {each.batch}, theirs has global batch {table.global_batch}."
            )
    return differences


def _published_chart(labelled: Sequence[tuple[str, Series]], efficiency: bool) -> Chart:
    curves, ticks = [], sorted({float(nodes) for _, each in labelled for nodes in each.nodes})
    for colour, (name, each) in enumerate(labelled):
        points = tuple(
            (float(nodes), each.efficiency(nodes, each.rate(nodes)) if efficiency else each.rate(nodes))
            for nodes in each.nodes
        )
        curves.append(Curve(name, MEASURED, colour, points))
    if efficiency:
        subtitle = "relative to the smallest node count of each row"
        return Chart("Efficiency, ours and theirs", subtitle, "nodes", "efficiency", tuple(curves), tuple(ticks), True)
    return Chart("Rates, ours and theirs", "iterations/s", "nodes", "iterations/s", tuple(curves), tuple(ticks))
