"""A report's rates over node counts: as series, beside a model fitted to them, and beside published results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spotmpi.forecast.model import Model, fit
from spotmpi.forecast.series import PublishedTable, Series, published_references
from spotmpi.report.chart import MEASURED, TRACE, Chart, Curve
from spotmpi.report.figures import MISSING, number, share
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row
from spotmpi.report.trial_results import STRONG, WEAK, TrialResult


def series_of(report: Report) -> list[Series]:
    """One series for each line and number of slots that was measured at two or more node counts."""
    found = []
    for line in report.lines:
        own = [row for row in report.rows if row.line == line and row.iterations_per_second]
        for slots in dict.fromkeys(row.slots for row in own):
            rows = [row for row in own if row.slots == slots]
            if len(rows) > 1 and line.scaling in (STRONG, WEAK):
                several = len({row.slots for row in own}) > 1
                name = label(line, report.lines) or report.title
                found.append(
                    _series(f"{name}, {slots} slots" if several else name, line, rows, report.without_allreduce)
                )
    return found


def _series(
    name: str, line: Line, rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]
) -> Series:
    first = rows[0].runs[0]
    strong = line.scaling == STRONG
    samples = first.training.context.get("samples")
    apart = {row.nodes: _trial_rates(without_allreduce.get((line.variant, row.nodes), ())) for row in rows}
    return Series(
        name,
        {row.nodes: _trial_rates(row.runs) for row in rows},
        strong=strong,
        serial=first.serial,
        without_allreduce={nodes: rates for nodes, rates in apart.items() if rates} or None,
        batch=line.batch if strong or line.batch is None else line.batch * rows[0].slots,
        samples=samples if isinstance(samples, int) else None,
    )


def _trial_rates(runs: Iterable[TrialResult]) -> list[float]:
    return [rate for run in runs if (rate := run.iterations_per_second)]


_MODEL_HEADER = ("Variant", "Nodes", "Measured", "Model", "95 % interval", "Error", "Verdict")
_CURVE_RANGE = 2  # times the largest measured count is as far as the curve goes


def model_section(series: Sequence[Series]) -> Section | None:
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
    cells = tuple(_model_cells(model, nodes) for model in models for nodes in model.series.nodes)
    return Section("Model and measurement", said, _MODEL_HEADER, cells, 1, (_model_chart(models),))


def _model_cells(model: Model, nodes: int) -> tuple[str, ...]:
    made = model.predict(nodes)
    interval = MISSING if made.low is None else f"{number(made.low)} to {number(made.high)}"
    measured, error = number(made.measured), share(made.error)
    return (model.series.name, str(nodes), measured, number(made.rate), interval, error, made.verdict)


def _model_chart(models: Sequence[Model]) -> Chart:
    curves, ticks = [], sorted({float(nodes) for model in models for nodes in model.series.nodes})
    for tone, model in enumerate(models):
        series, last = model.series, model.series.nodes[-1] * _CURVE_RANGE
        line = tuple((float(nodes), model.predict(nodes).rate) for nodes in range(series.nodes[0], last + 1))
        points = tuple((float(nodes), series.rate(nodes)) for nodes in series.nodes)
        curves += [Curve(f"{series.name}, model", TRACE, tone, line), Curve(series.name, MEASURED, tone, points)]
    ticks.append(max(x for curve in curves for x, _ in curve.points))
    subtitle = "lines: model; marks: measured"
    return Chart("Model and measurement", subtitle, "nodes", "iterations/s", tuple(curves), tuple(ticks))


_PUBLISHED_HEADER = ("Variant", "Nodes", "Iterations/s", "Efficiency", "Source")
_OURS = "ours"


def published_section(
    series: Sequence[Series], table: PublishedTable, conditions: Sequence[tuple[str, str]]
) -> Section:
    """*table* beside our *series*; *conditions* tell how ours was measured."""
    theirs = table.as_series()
    named = [(f"{_OURS}: {each.name}", each) for each in series] + [(each.name, each) for each in theirs]
    cells = tuple(
        (each.name, str(nodes), number(each.rate(nodes)), share(each.efficiency(nodes, each.rate(nodes))), source)
        for source, group in ((_OURS, series), (table.title, theirs))
        for each in group
        for nodes in each.nodes
    )
    said = (
        f"{table.title}: {table.source}. Efficiency of each row is against its own smallest node count.",
        "What is known elsewhere: "
        + "; ".join(f"{each.claim} ({each.source})" for each in published_references())
        + ".",
    )
    warnings = tuple(f"Published, {said}" for each in theirs for said in each.warnings())
    differences = (*(f"Theirs: {fact}." for fact in table.setup), *_our_setup(series, table, conditions), *warnings)
    charts = (_published_chart(named, False), _published_chart(named, True))
    return Section("Beside published results", said, _PUBLISHED_HEADER, cells, 1, charts, differences)


def _our_setup(series: Sequence[Series], table: PublishedTable, conditions: Sequence[tuple[str, str]]) -> list[str]:
    shown = ("Program", "Machine", "GPUs", "Data", "Versions")
    found = [f"Ours: {name.lower()} {value}." for name, value in conditions if name in shown]
    for each in series:
        kind = "global batch" if each.strong else "batch per node"
        if each.batch != table.global_batch or not each.strong:
            found.append(
                f"Not the same work: {each.name} has {kind} {each.batch}, theirs global batch {table.global_batch}."
            )
    return found


def _published_chart(named: Sequence[tuple[str, Series]], efficiency: bool) -> Chart:
    curves, ticks = [], sorted({float(nodes) for _, each in named for nodes in each.nodes})
    for tone, (name, each) in enumerate(named):
        points = tuple(
            (float(nodes), each.efficiency(nodes, each.rate(nodes)) if efficiency else each.rate(nodes))
            for nodes in each.nodes
        )
        curves.append(Curve(name, MEASURED, tone, points))
    if efficiency:
        subtitle = "of each row against its smallest node count"
        return Chart("Efficiency, ours and theirs", subtitle, "nodes", "efficiency", tuple(curves), tuple(ticks), True)
    return Chart("Rates, ours and theirs", "iterations/s", "nodes", "iterations/s", tuple(curves), tuple(ticks))
