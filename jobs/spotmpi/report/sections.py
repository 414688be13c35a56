"""The sections of a report after its main table; those of effects and of scaling have files of their own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from spotmpi.agent import record
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import counted
from spotmpi.forecast.published import published_tables
from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report import scaling
from spotmpi.report.figures import (
    MEASURED,
    MISSING,
    TRACE,
    Bar,
    BarChart,
    Chart,
    Curve,
    interval,
    number,
    share,
    time_unit,
    with_count,
)
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row, iteration_seconds, slowest
from spotmpi.report.trial_results import NodePlacement, TrialResult
from spotmpi.runs.reader import Attempt, timeline
from spotmpi.streams.figures import Figures, advice
from spotmpi.study.study import Budget
from spotmpi.study.sweep import Sweep

RunsWithoutAllreduce = Mapping[tuple[str, int], Sequence[TrialResult]]  # (variant, nodes) -> runs
WorkerPrice = Callable[[Row], float | None]  # dollars per hour of a worker

_HOUR = 3600.0
_NODE_HEADER = ("Nodes", "Type", "Market", "Zone", "Placement group", "Source", "Variants")
_ALL_VARIANTS = "all"
_MICRO_BENCHMARK_HEADER = ("Variant", "Nodes", "What", "Value", "Unit")
_MICRO_BENCHMARK_VALUES = (
    ("best_busbw", "allreduce, bus bandwidth", "GB/s"),
    ("cold_mb_per_second", "reading, cold", "MB/s"),
    ("cold_files_per_second", "reading, cold", "files/s"),
    ("warm_mb_per_second", "reading, warm", "MB/s"),
    ("warm_files_per_second", "reading, warm", "files/s"),
)
_OUTCOME_COLOURS = {record.SUCCEEDED: 2, record.INTERRUPTED: 1, record.FAILED: 3, record.STOPPED: 0}
_SHARES = {5: "works", 4: "waits"}
_STREAM_HEADER = ("Variant", "Nodes", "Workers", "Batches/s", "MB/s of a rank", "Ranks wait", "Workers wait", "Skipped")
_STREAM_MEDIANS = ("batches_per_second", "mb_per_second", "ranks_wait", "workers_wait", "postprocess_wait")
_ACTIVITIES = {5: "compute", 3: "communication", 4: "input"}  # not the first ones, which stand for variants
_BREAKDOWN_HEADER = ("Variant", "Nodes", "Compute", "Communication", "Bounds", "Input", "Slowest rank")


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
        breakdown_section(report.rows, report.without_allreduce),
        stream_section(report.rows, partial(_worker_price, study.budget)),
        scaling.effect_section(report.rows, study.variants),
        scaling.model_section(series),
        compared,
        micro_benchmark_section([*report.micro_benchmarks, *report.runs]),
        node_section(report.runs),
        timeline_section([(trial, each) for trial, paths in runs for each in timeline(paths) if each.outcome]),
    )
    return [section for section in candidates if section]


def _worker_price(budget: Budget, row: Row) -> float | None:
    """Dollars per hour of one more worker of the stream of *row*; without a price of its own it counts as a node."""
    price = budget.price_of(row.line.variant, row.nodes)
    return (price.worker_hour or price.node_hour) if price and not price.machine else None


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
    return (
        name,
        str(row.nodes),
        number(price.hourly(row.nodes) / row.nodes if price else None),
        number(dollars),
        number(samples),
    )


def _cost_of(row: Row, budget: Budget, count: float, rate: float | None) -> float | None:
    """Dollars for *count* items at a *rate* per second."""
    price = budget.price_of(row.line.variant, row.nodes)
    return price.hourly(row.nodes) * count / rate / _HOUR if price and rate else None


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


def timeline_section(attempts: Sequence[tuple[int, Attempt]]) -> Section | None:
    """All attempts over time by their trials, and a table of those that did not succeed."""
    if not attempts:
        return None
    unfinished = [(trial, each) for trial, each in attempts if each.outcome != record.SUCCEEDED]
    cells = tuple(
        (str(trial), str(each.number), f"{each.seconds:.0f} s", each.outcome, each.reason) for trial, each in unfinished
    )
    text = [f"{counted(len(attempts), 'attempt')} of {counted(len({trial for trial, _ in attempts}), 'trial')}."]
    text += (
        ["Iterations that were repeated after a restart count once, with the times of the later attempt."]
        if unfinished
        else []
    )
    header = ("Trial", "Attempt", "Lasted", "Outcome", "Reason") if unfinished else ()
    return Section("Attempts and interruptions", tuple(text), header, cells, 9, (_timeline_chart(attempts),))


def _timeline_chart(attempts: Sequence[tuple[int, Attempt]]) -> Chart:
    origin = min(each.start for _, each in attempts)
    unit, size = time_unit(max(each.start + each.seconds for _, each in attempts) - origin)
    curves = []
    for trial, each in attempts:
        ends = (each.start - origin, each.start + each.seconds - origin)
        points = tuple((moment / size, float(trial)) for moment in ends)
        curves.append(Curve(each.outcome, TRACE, _OUTCOME_COLOURS[each.outcome], points))
    return Chart(
        "Attempts over time", "each line is an attempt", f"{unit} since the first start", "trial", tuple(curves)
    )


def stream_section(rows: Sequence[Row], price: WorkerPrice = lambda row: None) -> Section | None:
    """The figures of the streams of all rows that have one."""
    known = [(row, figures) for row in rows if (figures := _stream_median([run.stream for run in row.runs]))]
    if not known:
        return None
    text = [
        "Ranks wait for batches, and workers for ranks: a worker works while it reads and prepares.",
        "Rates and shares are those since the first report of the last attempt, medians over the trials of a row.",
    ]
    sources = dict.fromkeys(run.stream.source for row in rows for run in row.runs if run.stream and run.stream.source)
    text += [f"Source list: {', '.join(sources)}."] if sources else []
    helpful = [(row, figures, line) for row, figures in known if (line := advice(figures, price(row)))]
    bullets = tuple(f"{_stream_name(row, known)}: {line}" for row, figures, line in helpful)
    cells = tuple(_stream_cells(row, figures) for row, figures in known)
    return Section("Streams", tuple(text), _STREAM_HEADER, cells, 1, (_stream_chart(known),), bullets, in_picture=True)


def _stream_median(runs: Sequence[Figures | None]) -> Figures | None:
    """The figures of the trials of a row as those of one run."""
    known = [figures for figures in runs if figures]
    if not known:
        return None
    medians = {key: statistics.median(getattr(figures, key) for figures in known) for key in _STREAM_MEDIANS}
    return known[-1]._replace(**medians, skipped=sum(figures.skipped for figures in known))


def _stream_cells(row: Row, figures: Figures) -> tuple[str, ...]:
    rates = (number(figures.batches_per_second), number(figures.mb_per_second))
    shares = (share(figures.ranks_wait), share(figures.workers_wait))
    return (row.line.variant, str(row.nodes), str(figures.workers), *rates, *shares, str(figures.skipped))


def _stream_chart(known: Sequence[tuple[Row, Figures]]) -> BarChart:
    bars = tuple(bar for row, figures in known for bar in _stream_bars(_stream_name(row, known), figures))
    return BarChart("Streams", "who waits for whom", "share of time", bars, tuple(_SHARES.items()), percent=True)


def _stream_bars(name: str, figures: Figures) -> Iterator[Bar]:
    sides = [("rank", figures.ranks, figures.ranks_wait), ("worker", figures.workers, figures.workers_wait)]
    if figures.postprocess_workers:
        sides.append(("postprocess worker", figures.postprocess_workers, figures.postprocess_wait))
    for what, count, waiting in sides:
        shares = zip(_SHARES, (1 - waiting, waiting), strict=True)
        yield Bar(f"{name}: {counted(count, what)}", tuple((colour, size) for colour, size in shares if size > 0))


def _stream_name(row: Row, known: Sequence[tuple[Row, Figures]]) -> str:
    """What a row is called among those with a stream."""
    several = len({each.line.variant for each, _ in known}) > 1
    return with_count(row.line.variant if several else "", row.nodes, "node")


@dataclass(frozen=True)
class TimeBreakdown:
    """Shares of an iteration, 0 to 1, None where unknown.

    ``slowest`` is the slowest rank, and by which share its iterations take longer than those of the median rank.
    """

    row: Row
    exposed: float | None
    bounds: Bounds | None
    input_wait: float | None
    slowest: tuple[int, float] | None

    @property
    def compute(self) -> float | None:
        """The rest of the iteration; 0 where communication and input leave none."""
        return None if self.exposed is None else max(1 - self.others, 0.0)

    @property
    def others(self) -> float:
        """The shares of communication and input together, that of communication not below 0, as noise may make it."""
        return max(self.exposed or 0.0, 0.0) + (self.input_wait or 0.0)


def time_breakdown(row: Row, without_allreduce: Sequence[TrialResult]) -> TimeBreakdown:
    """The time breakdown of *row*, with the trials of the same configuration without allreduce."""
    trained, without = iteration_seconds(row.runs), iteration_seconds(without_allreduce)
    exposed, bounds = intervals.exposed_share(trained, without) if trained and without else (None, None)
    if row.ranks == 1:
        exposed, bounds = 0.0, None
    input_wait = [run.training.input_wait for run in row.runs if run.training.input_wait is not None]
    return TimeBreakdown(
        row,
        exposed,
        bounds,
        statistics.median(input_wait) if input_wait else None,
        slowest(without_allreduce or row.runs),
    )


def breakdown_section(rows: Sequence[Row], without_allreduce: RunsWithoutAllreduce) -> Section | None:
    """The time breakdowns of all rows that have one."""
    breakdowns = [time_breakdown(row, without_allreduce.get((row.line.variant, row.nodes), ())) for row in rows]
    known = [
        each for each in breakdowns if (each.exposed is not None and without_allreduce) or each.input_wait is not None
    ]
    if not known:
        return None
    text = ["Input is the time that the host waits for batches."]
    if without_allreduce:
        text.append(
            "Communication is the time that trials without the allreduce of gradients save, that is, its exposed part. "
            "Those trials train no model."
        )
    else:
        text.append("To measure communication, set without_allreduce = true in the study.")
    text += _overlaps(known)
    charts = (_breakdown_chart(known),) if without_allreduce else ()
    return Section(
        "Time breakdown",
        tuple(text),
        _BREAKDOWN_HEADER,
        tuple(map(_breakdown_cells, known)),
        1,
        charts,
        in_picture=True,
    )


def _overlaps(breakdowns: Sequence[TimeBreakdown]) -> list[str]:
    """A sentence for the rows whose communication and input are more than the iteration."""
    total = [(each, share(each.others)) for each in breakdowns if each.exposed is not None and each.others > 1.0005]
    if not total:
        return []
    rows = "; ".join(f"{with_count(each.row.line.variant, each.row.nodes, 'node')}: {sum_}" for each, sum_ in total)
    return [
        f"Communication and input are more than an iteration ({rows}): the trials without the allreduce waited less "
        "for batches than the others."
    ]


def _breakdown_cells(each: TimeBreakdown) -> tuple[str, ...]:
    slow = MISSING if each.slowest is None else f"{each.slowest[0]} (+{share(each.slowest[1])})"
    exposed, input_wait = share(each.exposed), share(each.input_wait)
    bounds = interval(each.bounds, as_share=True)
    return (each.row.line.variant, str(each.row.nodes), share(each.compute), exposed, bounds, input_wait, slow)


def _breakdown_chart(breakdowns: Sequence[TimeBreakdown]) -> BarChart:
    several = len({each.row.line for each in breakdowns}) > 1
    bars = tuple(
        Bar(with_count(each.row.line.variant if several else "", each.row.nodes, "node"), _breakdown_parts(each))
        for each in breakdowns
        if each.exposed is not None
    )
    legend = tuple(_ACTIVITIES.items())
    return BarChart("Time breakdown", "shares of an iteration", "share", bars, legend, percent=True)


def _breakdown_parts(each: TimeBreakdown) -> tuple[tuple[int, float], ...]:
    """Sizes that fill the bar; shares of communication that are negative due to noise count as 0."""
    sizes = (each.compute or 0.0, max(each.exposed or 0.0, 0.0), each.input_wait or 0.0)
    return tuple((colour, size / sum(sizes)) for (colour, _), size in zip(_ACTIVITIES.items(), sizes, strict=True))
