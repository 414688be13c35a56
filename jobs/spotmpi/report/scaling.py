"""How rates depend on parameters, and on node counts: as series, beside a model and published results. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotmpi.agent.protocol import STRONG, WEAK
from spotmpi.core.wording import counted
from spotmpi.forecast.model import NOT_VALID, Model, Series, fit
from spotmpi.forecast.published import PublishedTable, published_references
from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report.figures import (
    MEASURED,
    MISSING,
    TRACE,
    Bar,
    BarChart,
    Chart,
    Curve,
    factor,
    interval,
    number,
    share,
    with_count,
)
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row, iteration_seconds
from spotmpi.report.trial_results import TrialResult
from spotmpi.study.parameters import Variant

_MODEL_HEADER = ("Variant", "Nodes", "Measured", "Model", "95 % interval", "Error", "Verdict")
_CURVE_RANGE = 2  # the curve of a model that is valid there ends at so many times the largest measured count
_PUBLISHED_HEADER = ("Variant", "Nodes", "Iterations/s", "Efficiency", "Source")
_OURS = "ours"
_COLOUR = 2  # of effects
NOISE = "within noise"
UNSURE = "unknown (single trial)"
AMONG_OTHERS = "unknown (one of several comparisons)"
FEW = f"unknown (fewer than {intervals.FEWEST_TRIALS} trials)"


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
                    _series(
                        f"{name}, {counted(slots, 'slot')}" if several else name, line, rows, report.without_allreduce
                    )
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


def model_section(series: Sequence[Series]) -> Section | None:
    """A model of each series with at least three measured counts: with two, there is none left to check it."""
    models = [fit(each) for each in series if len(each.rates) > 2]
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
    bounds = MISSING if prediction.low is None else f"{number(prediction.low)} to {number(prediction.high)}"
    measured, error = number(prediction.measured), share(prediction.error)
    return (model.series.name, str(nodes), measured, number(prediction.rate), bounds, error, prediction.verdict)


def _model_chart(models: Sequence[Model]) -> Chart:
    curves, ticks = [], sorted({float(nodes) for model in models for nodes in model.series.nodes})
    for colour, model in enumerate(models):
        series, last = model.series, model.series.nodes[-1]
        last *= 1 if model.predict(last).verdict == NOT_VALID else _CURVE_RANGE
        line = tuple((float(nodes), model.predict(nodes).rate) for nodes in range(series.nodes[0], last + 1))
        points = tuple((float(nodes), series.rate(nodes)) for nodes in series.nodes)
        curves += [Curve(f"{series.name}, model", TRACE, colour, line), Curve(series.name, MEASURED, colour, points)]
    ticks = sorted({*ticks, max(x for curve in curves for x, _ in curve.points)})
    subtitle = "marks: measured; lines without marks: model"
    return Chart("Scaling model", subtitle, "nodes", "iterations/s", tuple(curves), tuple(ticks))


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


@dataclass(frozen=True)
class Effect:
    """The rate with a value relative to that with ``base``, over ``pairs`` of otherwise equal configurations."""

    parameter: str
    value: str
    base: str
    nodes: int
    ratio: float
    bounds: Bounds | None
    pairs: int
    holds: bool = True  # among all comparisons of the table

    @property
    def verdict(self) -> str:
        """Whether the change exceeds noise."""
        return significance(self.ratio, self.bounds, self.holds)


def significance(ratio: float, bounds: Bounds | None, holds: bool) -> str:
    """Whether a ratio of rates differs from 1 by more than noise, in words.

    The ranges of few trials cannot tell: those of 2 and 2 equal ones exclude 1 in a third of all cases. Of 20 intervals
    of equal ones, 1 excludes it, so a claim has to *hold* among all that are made (`intervals.hold_together`).
    """
    if bounds is None:
        return UNSURE
    if bounds.contains(1.0):
        return NOISE
    if bounds.kind == intervals.RANGE:
        return FEW
    if not holds:
        return AMONG_OTHERS
    return "faster" if ratio > 1 else "slower"


def effects(rows: Sequence[Row], variants: Sequence[Variant]) -> list[Effect]:
    """The effects of all parameters, separately for each node count; of samples/s where the global batch differs."""
    measured, compared = [], []
    per_sample = _batches_differ(rows)
    trials = {(row.nodes, row.line.variant): _trial_seconds(row, per_sample) for row in rows if row.typical}
    for name in dict.fromkeys(each for variant in variants for each, _ in _values(variant)):
        values = list(dict.fromkeys(dict(_values(variant)).get(name, "") for variant in variants))
        for value in values[1:]:
            for nodes in sorted({row.nodes for row in rows}):
                own = {variant: seconds for (count, variant), seconds in trials.items() if count == nodes}
                pairs = _pairs(own, variants, name, value, values[0])
                if pairs:
                    ratio, bounds = intervals.mean_ratio(pairs)
                    words = name.replace("_", " ")
                    measured.append(Effect(words, value, values[0], nodes, ratio, bounds, len(pairs)))
                    compared.append(pairs)
    together = zip(measured, intervals.hold_together(compared), strict=True)
    return [replace(effect, holds=holds) for effect, holds in together]


def effect_section(rows: Sequence[Row], variants: Sequence[Variant]) -> Section | None:
    """The effects as table and chart."""
    measured = effects(rows, variants)
    if not measured:
        return None
    rate = "samples/s" if _batches_differ(rows) else "iterations/s"
    text = (
        f"{rate.capitalize()} relative to the first value of the same parameter, all else being equal; the geometric "
        "mean of several pairs. Each interval is for one comparison; faster and slower hold for all of the table "
        "together.",
    )
    chart = _effect_chart(measured, rate)
    header = ("Parameter", "Value", "Base value", "Nodes", "Effect", "Bounds", "Pairs", "Verdict")
    cells = tuple(_effect_cells(each, "" if rate == "iterations/s" else f" {rate}") for each in measured)
    return Section("Effect of each parameter", text, header, cells, 3, (chart,), in_picture=True)


def _effect_chart(measured: Sequence[Effect], rate: str) -> BarChart:
    """The effect of each value as a bar, muted where it may be noise."""
    bars = tuple(
        Bar(
            f"{with_count(each.value, each.nodes, 'node')}: {factor(each.ratio)}, {each.verdict}",
            value=each.ratio,
            bounds=(each.bounds.low, each.bounds.high) if each.bounds else None,
            colour=_COLOUR,
            muted=each.verdict in (NOISE, UNSURE, FEW, AMONG_OTHERS),
        )
        for each in measured
    )
    kinds = sorted({each.bounds.kind for each in measured if each.bounds})
    bases = {each.base for each in measured}
    base = f"relative to {bases.pop()}" if len(bases) == 1 else "relative to the first value of each parameter"
    return BarChart("Effect of each parameter", ", ".join([base, *kinds]), f"ratio of {rate}", bars, mark=1.0)


def _effect_cells(each: Effect, unit: str) -> tuple[str, ...]:
    """The cells of an effect, whose *unit* is named where it is not that of the main column of rates."""
    differences = (each.parameter, each.value, each.base, str(each.nodes), factor(each.ratio) + unit)
    return (*differences, interval(each.bounds), str(each.pairs), each.verdict)


def _values(variant: Variant) -> tuple[tuple[str, str], ...]:
    """The values of a variant; without a study file its name is the value of the only parameter."""
    return variant.values or (("variant", variant.name),)


_Pair = tuple[Sequence[intervals.Seconds], Sequence[intervals.Seconds]]


def _batches_differ(rows: Sequence[Row]) -> bool:
    """Whether configurations on the same nodes have different global batches, so that iterations/s do not compare."""
    batches = {(row.nodes, row.runs[0].samples_per_iteration) for row in rows}
    return len(batches) > len({nodes for nodes, _ in batches}) and all(samples for _, samples in batches)


def _trial_seconds(row: Row, per_sample: bool) -> Sequence[intervals.Seconds]:
    """The seconds of the iterations of each trial, or those of one sample in each."""
    trials, samples = iteration_seconds(row.runs), row.runs[0].samples_per_iteration
    return [[seconds / samples for seconds in trial] for trial in trials] if per_sample and samples else trials


def _pairs(
    trials: Mapping[str, Sequence[intervals.Seconds]], variants: Sequence[Variant], name: str, value: str, base: str
) -> list[_Pair]:
    """Trials at *value* and at *base* of otherwise equal configurations."""
    return [
        (trials[variant.name], trials[other.name])
        for variant in variants
        for other in variants
        if dict(_values(variant)).get(name) == value
        and dict(_values(other)) == {**dict(_values(variant)), name: base}
        and {variant.name, other.name} <= set(trials)
    ]
