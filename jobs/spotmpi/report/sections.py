"""The sections of a report beside its main table: costs, nodes, micro-benchmarks and attempts are here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from spotmpi.agent import record
from spotmpi.core.names import RunPaths
from spotmpi.forecast.series import published_tables
from spotmpi.report import comparison, scaling, time_breakdown
from spotmpi.report.chart import MEASURED, TRACE, Chart, Curve
from spotmpi.report.figures import MISSING, number
from spotmpi.report.report import Report, Section, label
from spotmpi.report.rows import Line, Row
from spotmpi.report.trial_results import NodePlacement, TrialResult
from spotmpi.runs import reader
from spotmpi.study.budget import Budget
from spotmpi.study.sweep import Sweep


def sweep_sections(sweep: Sweep, report: Report, runs_folder: Path) -> list[Section]:
    """What *report*, which has its rows already, can show beside them."""
    study, series = sweep.study, scaling.series_of(report)
    lines = [(line, label(line, report.lines) or report.title) for line in report.lines]
    compared = (
        scaling.published_section(series, published_tables()[study.compare], report.conditions)
        if study.compare
        else None
    )
    runs = [(trial.number, RunPaths(runs_folder / run)) for trial in sweep.trials for run in trial.runs]
    found: Sequence[Section | None] = (
        cost_section(report.rows, lines, study.budget),
        time_breakdown.section(report.rows, report.without_allreduce),
        comparison.effect_section(report.rows, study.variants),
        scaling.model_section(series),
        compared,
        probe_section(report.probes),
        node_section(report.runs),
        timeline_section([each for trial, paths in runs for each in attempts(trial, paths)]),
    )
    return [section for section in found if section]


_HOUR = 3600.0


def cost_per_thousand(row: Row, budget: Budget) -> float | None:
    """Dollars per 1,000 iterations, each row at the price of its own nodes."""
    return _cost_of(row, budget, 1000, row.iterations_per_second)


def cost_section(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> Section | None:
    """Money per 1,000 iterations and per million samples of each row; None without a price."""
    rated = [row for row in rows if row.iterations_per_second]
    with_prices = [row for row in rated if budget.price_of(row.line.variant, row.nodes)]
    if not with_prices:
        return None
    cells = tuple(_cost_cells(row, dict(names)[row.line], budget) for row in with_prices)
    costs = "; ".join(map(str, budget.all_prices))
    said = f"A node costs {costs}; storage and system nodes come on top."
    header = ("Variant", "Nodes", "$ per node-hour", "$ per 1,000 iterations", "$ per million samples")
    return Section("What it costs", (said,), header, cells, 1, _cost_charts(with_prices, names, budget))


def _cost_cells(row: Row, name: str, budget: Budget) -> tuple[str, ...]:
    price = budget.price_of(row.line.variant, row.nodes)
    dollars, samples = cost_per_thousand(row, budget), _cost_of(row, budget, 1e6, row.samples_per_second)
    return (name, str(row.nodes), number(price.node_hour if price else None), number(dollars), number(samples))


def _cost_of(row: Row, budget: Budget, count: float, rate: float | None) -> float | None:
    """Dollars for so many of what is made at a *rate* per second."""
    price = budget.price_of(row.line.variant, row.nodes)
    return row.nodes * price.node_hour * count / rate / _HOUR if price and rate else None


def _cost_charts(rows: Sequence[Row], names: Sequence[tuple[Line, str]], budget: Budget) -> tuple[Chart, ...]:
    ticks = tuple(sorted({float(row.nodes) for row in rows}))
    if len(ticks) < 2:
        return ()
    curves = []
    for tone, (line, name) in enumerate(names):
        own = sorted((row for row in rows if row.line == line), key=lambda row: row.nodes)
        points = tuple((float(row.nodes), cost_per_thousand(row, budget) or 0.0) for row in own)
        curves += [Curve(name, MEASURED, tone, points)] if points else []
    return (Chart("Money", "dollars per 1,000 iterations", "nodes", "$", tuple(curves), ticks),)


_NODE_HEADER = ("Nodes", "Type", "Market", "Zone", "Placement group", "Told by", "Variants")
_ALL_VARIANTS = "all"


def node_section(runs: Sequence[TrialResult]) -> Section | None:
    """The machines behind all *runs*, like ones once, with who told what they are."""
    every = list(dict.fromkeys(run.variant for run in runs))
    kinds: dict[tuple[NodePlacement, str], list[tuple[str, str]]] = {}
    for run in runs:
        for machine in run.machines:
            kinds.setdefault((machine.placement, machine.source), []).append((machine.name, run.variant))
    if all(place == NodePlacement() for place, _ in kinds):
        return None
    cells = tuple(_node_cells(place, told, used, every) for (place, told), used in kinds.items())
    failures = dict.fromkeys(machine.failure for run in runs for machine in run.machines if machine.failure)
    said = (
        "Distinct machines, those included that were taken away in the middle of a run.",
        *(f"AWS could not be asked: {failure}." for failure in failures),
    )
    return Section("The nodes", said, _NODE_HEADER, cells, len(_NODE_HEADER))


def _node_cells(
    place: NodePlacement, told: str, used: Sequence[tuple[str, str]], every: Sequence[str]
) -> tuple[str, ...]:
    variants = list(dict.fromkeys(variant for _, variant in used))
    whose = _ALL_VARIANTS if len(variants) == len(every) else "; ".join(variants)
    return (str(len({name for name, _ in used})), *(value or MISSING for value in astuple(place)), told, whose)


_PROBE_HEADER = ("Variant", "Nodes", "What", "Value", "Unit")
_PROBE_VALUES = (
    ("best_busbw", "allreduce, bus bandwidth", "GB/s"),
    ("cold_mb_per_second", "reading, cold", "MB/s"),
    ("cold_files_per_second", "reading, cold", "files/s"),
    ("warm_mb_per_second", "reading, warm", "MB/s"),
    ("warm_files_per_second", "reading, warm", "files/s"),
)


def probe_section(runs: Sequence[TrialResult]) -> Section | None:
    """Bandwidth of the allreduce and speed of reading the data, over all ranks."""
    cells = tuple(
        (run.variant, str(run.nodes), what, number(value), unit)
        for run in runs
        for key, what, unit in _PROBE_VALUES
        if isinstance(value := run.training.result.get(key), int | float)
    )
    said = (
        "Bus bandwidth as nccl-tests define it, the best over message sizes.",
        "Reading is what all ranks do together; cold as far as the system let go of what it had cached.",
    )
    return Section("The nodes beforehand", said, _PROBE_HEADER, cells, 3) if cells else None


_OUTCOME_TONES = {"done": 2, "interrupted": 1, "failed": 3}
_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclass(frozen=True)
class Attempt:
    """One attempt of the run of a trial: from *start* to *end* (Unix seconds), how it ended and why."""

    trial: int
    number: int
    start: float
    end: float
    ending: str
    reason: str


def attempts(trial: int, paths: RunPaths) -> list[Attempt]:
    """The attempts of a run that has ended."""
    found: list[Attempt] = []
    start, number = None, 0
    for event in reader.lines(paths.events):
        kind = event.get("event")
        if kind == record.STARTED:
            start, number = event["t"], event.get("attempt", number + 1)
        elif start is not None and kind in (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL):
            ending = {record.INTERRUPTED: "interrupted", record.SUCCEEDED: "done"}.get(kind, "failed")
            found.append(Attempt(trial, number, start, event["t"], ending, str(event.get("reason") or "")))
            start = None
    return found


def timeline_section(found: Sequence[Attempt]) -> Section | None:
    """All attempts over time, and those that did not end well as a table."""
    if not found:
        return None
    cut = [each for each in found if each.ending != "done"]
    origin = min(each.start for each in found)
    cells = tuple(
        (str(each.trial), str(each.number), f"{each.end - origin:.0f} s", each.ending, each.reason) for each in cut
    )
    said = [f"{len(found)} attempts of {len({each.trial for each in found})} trials."]
    said += ["Times that a restart made anew are counted once, as the later attempt made them."] if cut else []
    header = ("Trial", "Attempt", "Ended after", "How", "Why") if cut else ()
    return Section("Attempts and reclaims", tuple(said), header, cells, 9, (_timeline_chart(found, origin),))


def _timeline_chart(found: Iterable[Attempt], origin: float) -> Chart:
    found = list(found)
    longest = max(each.end for each in found) - origin
    unit, size = next((unit, size) for unit, size in _UNITS if longest > 3 * size or size == 1.0)
    curves = tuple(
        Curve(
            each.ending,
            TRACE,
            _OUTCOME_TONES[each.ending],
            (((each.start - origin) / size, float(each.trial)), ((each.end - origin) / size, float(each.trial))),
        )
        for each in found
    )
    return Chart("Attempts over time", "each line is an attempt", f"{unit} since the first start", "trial", curves)
