"""The time of an iteration by activity: computation, exposed communication, waiting for input. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report.chart import Bar, BarChart
from spotmpi.report.figures import counted, interval, share
from spotmpi.report.report import Section
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.report.trial_results import TrialResult

RunsWithoutAllreduce = Mapping[tuple[str, int], Sequence[TrialResult]]  # (variant, nodes) -> runs

_COLOURS = {5: "compute", 3: "communication", 4: "input"}  # not the first ones, which stand for variants
_HEADER = ("Variant", "Nodes", "Compute", "Communication", "Bounds", "Input", "Slowest rank")


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
        """The rest of the iteration."""
        return None if self.exposed is None else 1 - self.exposed - (self.input_wait or 0.0)


def time_breakdown(row: Row, without_allreduce: Sequence[TrialResult]) -> TimeBreakdown:
    """The time breakdown of *row*, with the trials of the same configuration without allreduce."""
    trained, without = iteration_seconds(row.runs), iteration_seconds(without_allreduce)
    exposed, bounds = intervals.exposed(trained, without) if trained and without else (None, None)
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


def slowest(runs: Sequence[TrialResult]) -> tuple[int, float] | None:
    """The slowest rank, and by which share its iterations take longer than those of the median rank.

    An allreduce makes ranks wait for each other: only runs without it show the full difference.
    """
    by_run = [run.training.rank_seconds for run in runs if len(run.training.rank_seconds) > 1]
    if not by_run:
        return None
    means = [statistics.median(times) for times in zip(*by_run, strict=False)]
    slow = max(range(len(means)), key=means.__getitem__)
    middle = statistics.median(means)
    return (slow, means[slow] / middle - 1) if middle > 0 else None


def section(rows: Sequence[Row], without_allreduce: RunsWithoutAllreduce) -> Section | None:
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
    charts = (_chart(known),) if without_allreduce else ()
    return Section("Time breakdown", tuple(text), _HEADER, tuple(map(_cells, known)), 1, charts, in_picture=True)


def _cells(each: TimeBreakdown) -> tuple[str, ...]:
    slow = "-" if each.slowest is None else f"{each.slowest[0]} (+{share(each.slowest[1])})"
    exposed, input_wait = share(each.exposed), share(each.input_wait)
    bounds = interval(each.bounds, as_share=True)
    return (each.row.line.variant, str(each.row.nodes), share(each.compute), exposed, bounds, input_wait, slow)


def _chart(breakdowns: Sequence[TimeBreakdown]) -> BarChart:
    several = len({each.row.line for each in breakdowns}) > 1
    bars = tuple(
        Bar(counted(each.row.line.variant if several else "", each.row.nodes, "node"), _parts(each))
        for each in breakdowns
        if each.exposed is not None
    )
    legend = tuple(_COLOURS.items())
    return BarChart("Time breakdown", "shares of an iteration", "share", bars, legend, percent=True)


def _parts(each: TimeBreakdown) -> tuple[tuple[int, float], ...]:
    """Sizes that fill the bar; shares of communication that are negative due to noise count as 0."""
    communication, input_wait = max(each.exposed or 0.0, 0.0), max(each.input_wait or 0.0, 0.0)
    sizes = (max(1 - communication - input_wait, 0.0), communication, input_wait)
    return tuple((colour, size / sum(sizes)) for (colour, _), size in zip(_COLOURS.items(), sizes, strict=True))
