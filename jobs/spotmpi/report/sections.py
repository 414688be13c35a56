"""The sections of a report after its main table; cost, nodes, micro-benchmarks and attempts are defined here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from spotmpi.agent import record
from spotmpi.core.names import RunPaths
from spotmpi.forecast.series import published_tables
from spotmpi.report import comparison, scaling, stream_section, time_breakdown
from spotmpi.report.chart import MEASURED, TRACE, Chart, Curve
from spotmpi.report.figures import MISSING, number
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row
from spotmpi.report.trial_results import NodePlacement, TrialResult
from spotmpi.runs import reader
from spotmpi.study.sweep import Sweep
from spotmpi.study.trial import Budget


def sweep_sections(sweep: Sweep, report: Report, runs_folder: Path) -> list[Section]:
    """The sections of a sweep whose *report* has its rows already."""
    study, series = sweep.study, scaling.series_of(report)
    lines = [(line, label(line, report.lines) or report.title) for line in report.lines]
    compared = (
        scaling.published_section(series, published_tables()[study.compare], report.conditions)
        if study.compare
        else None
    )
    runs = [(trial.number, RunPaths(runs_folder / run)) for trial in sweep.trials for run in trial.runs]
    candidates: Sequence[Section | None] = (
        cost_section(report.rows, lines, study.budget),
        time_breakdown.section(report.rows, report.without_allreduce),
        stream_section.section(report.rows, partial(_worker_price, study.budget)),
        comparison.effect_section(report.rows, study.variants),
        scaling.model_section(series),
        compared,
        micro_benchmark_section([*report.micro_benchmarks, *report.runs]),
        node_section(report.runs),
        timeline_section([each for trial, paths in runs for each in attempts_of(trial, paths)]),
    )
    return [section for section in candidates if section]


_HOUR = 3600.0


def _worker_price(budget: Budget, row: Row) -> float | None:
    """Dollars per hour of one more worker of the stream of *row*; without a price of its own it counts as a node."""
    price = budget.price_of(row.line.variant, row.nodes)
    return (price.worker_hour or price.node_hour) if price else None


def _cost_per_thousand(row: Row, budget: Budget) -> float | None:
    """Dollars per 1,000 iterations at the price of the nodes of *row*."""
    return _cost_of(row, budget, 1000, row.iterations_per_second)


def cost_section(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> Section | None:
    """Dollars per 1,000 iterations and per million samples of each row; None without a price."""
    rated = [row for row in rows if row.iterations_per_second]
    priced = [row for row in rated if budget.price_of(row.line.variant, row.nodes)]
    if not priced:
        return None
    cells = tuple(_cost_cells(row, dict(names)[row.line], budget) for row in priced)
    costs = "; ".join(map(str, budget.all_prices))
    text = f"Node price: {costs}. Storage, system nodes, and the time of starts, warm-up and restarts are not included."
    header = ("Variant", "Nodes", "$ per node-hour", "$ per 1,000 iterations", "$ per million samples")
    return Section("Cost", (text,), header, cells, 1, _cost_charts(priced, names, budget))


def _cost_cells(row: Row, name: str, budget: Budget) -> tuple[str, ...]:
    price = budget.price_of(row.line.variant, row.nodes)
    dollars, samples = _cost_per_thousand(row, budget), _cost_of(row, budget, 1e6, row.samples_per_second)
    return (name, str(row.nodes), number(price.node_hour if price else None), number(dollars), number(samples))


def _cost_of(row: Row, budget: Budget, count: float, rate: float | None) -> float | None:
    """Dollars for *count* items at a *rate* per second."""
    price = budget.price_of(row.line.variant, row.nodes)
    return row.nodes * price.node_hour * count / rate / _HOUR if price and rate else None


def _cost_charts(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> tuple[Chart, ...]:
    ticks = tuple(sorted({float(row.nodes) for row in rows}))
    if len(ticks) < 2:
        return ()
    curves = []
    for colour, (line, name) in enumerate(names):
        own = sorted((row for row in rows if row.line == line), key=lambda row: row.nodes)
        points = tuple((float(row.nodes), _cost_per_thousand(row, budget) or 0.0) for row in own)
        curves += [Curve(name, MEASURED, colour, points)] if points else []
    return (Chart("Cost", "dollars per 1,000 iterations", "nodes", "$", tuple(curves), ticks),)


_NODE_HEADER = ("Nodes", "Type", "Market", "Zone", "Placement group", "Source", "Variants")
_ALL_VARIANTS = "all"


def node_section(runs: Sequence[TrialResult]) -> Section | None:
    """The distinct kinds of machine of all *runs*, with the source of that knowledge."""
    variants_of_all = list(dict.fromkeys(run.variant for run in runs))
    kinds: dict[tuple[NodePlacement, str], list[tuple[str, str]]] = {}
    for run in runs:
        for machine in run.machines:
            kinds.setdefault((machine.placement, machine.source), []).append((machine.name, run.variant))
    if all(placement == NodePlacement() for placement, _ in kinds):
        return None
    cells = tuple(
        _node_cells(placement, source, machines, variants_of_all) for (placement, source), machines in kinds.items()
    )
    failures = dict.fromkeys(machine.failure for run in runs for machine in run.machines if machine.failure)
    text = (
        "Distinct machines, including those that were reclaimed during a run.",
        *(f"AWS could not be asked: {failure}." for failure in failures),
    )
    return Section("Nodes", text, _NODE_HEADER, cells, len(_NODE_HEADER))


def _node_cells(
    placement: NodePlacement, source: str, machines: Sequence[tuple[str, str]], variants_of_all: Sequence[str]
) -> tuple[str, ...]:
    variants = list(dict.fromkeys(variant for _, variant in machines))
    variant_names = _ALL_VARIANTS if len(variants) == len(variants_of_all) else "; ".join(variants)
    return (
        str(len({name for name, _ in machines})),
        *(value or MISSING for value in astuple(placement)),
        source,
        variant_names,
    )


_MICRO_BENCHMARK_HEADER = ("Variant", "Nodes", "What", "Value", "Unit")
_MICRO_BENCHMARK_VALUES = (
    ("best_busbw", "allreduce, bus bandwidth", "GB/s"),
    ("cold_mb_per_second", "reading, cold", "MB/s"),
    ("cold_files_per_second", "reading, cold", "files/s"),
    ("warm_mb_per_second", "reading, warm", "MB/s"),
    ("warm_files_per_second", "reading, warm", "files/s"),
)


def micro_benchmark_section(runs: Sequence[TrialResult]) -> Section | None:
    """Bandwidth of an allreduce and speed of reading the data, over all ranks; None without such runs."""
    cells = tuple(
        (run.variant, str(run.nodes), what, number(value), unit)
        for run in runs
        for key, what, unit in _MICRO_BENCHMARK_VALUES
        if isinstance(value := run.training.result.get(key), int | float)
    )
    text = (
        "Bus bandwidth as defined by nccl-tests, the best over message sizes.",
        "Reading is the sum over all ranks; cold as far as the system dropped its page cache.",
    )
    return Section("Micro-benchmarks", text, _MICRO_BENCHMARK_HEADER, cells, 3) if cells else None


_OUTCOME_COLOURS = {"succeeded": 2, "interrupted": 1, "failed": 3, "stopped": 0}
_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclass(frozen=True)
class Attempt:
    """One attempt of the run of a trial: *start* and *end* (Unix seconds), outcome and reason."""

    trial: int
    number: int
    start: float
    end: float
    outcome: str
    reason: str


def attempts_of(trial: int, paths: RunPaths) -> list[Attempt]:
    """The attempts of a finished run."""
    attempts: list[Attempt] = []
    start, number = None, 0
    for event in reader.lines(paths.events):
        kind = event.get("event")
        if kind == record.STARTED:
            start, number = event["t"], event.get("attempt", number + 1)
        elif start is not None and kind in (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL):
            outcome = "failed" if kind == record.RESTARTED else kind
            attempts.append(Attempt(trial, number, start, event["t"], outcome, str(event.get("reason") or "")))
            start = None
    return attempts


def timeline_section(attempts: Sequence[Attempt]) -> Section | None:
    """All attempts over time, and a table of those that did not succeed."""
    if not attempts:
        return None
    unfinished = [each for each in attempts if each.outcome != "succeeded"]
    origin = min(each.start for each in attempts)
    cells = tuple(
        (str(each.trial), str(each.number), f"{each.end - origin:.0f} s", each.outcome, each.reason)
        for each in unfinished
    )
    text = [f"{len(attempts)} attempts of {len({each.trial for each in attempts})} trials."]
    text += (
        ["Iterations that were repeated after a restart count once, with the times of the later attempt."]
        if unfinished
        else []
    )
    header = ("Trial", "Attempt", "Ended after", "Outcome", "Reason") if unfinished else ()
    return Section("Attempts and interruptions", tuple(text), header, cells, 9, (_timeline_chart(attempts, origin),))


def _timeline_chart(attempts: Sequence[Attempt], origin: float) -> Chart:
    longest = max(each.end for each in attempts) - origin
    unit, size = next((unit, size) for unit, size in _UNITS if longest > 3 * size or size == 1.0)
    curves = tuple(
        Curve(
            each.outcome,
            TRACE,
            _OUTCOME_COLOURS[each.outcome],
            (((each.start - origin) / size, float(each.trial)), ((each.end - origin) / size, float(each.trial))),
        )
        for each in attempts
    )
    return Chart("Attempts over time", "each line is an attempt", f"{unit} since the first start", "trial", curves)
