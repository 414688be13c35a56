"""Where the time of an iteration goes: computation, communication that nothing hides, waiting for input."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report.chart import Strip, Strips
from spotmpi.report.figures import counted, interval, share
from spotmpi.report.report import Section
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.report.trial_results import TrialResult

Silent = Mapping[tuple[str, int], Sequence[TrialResult]]  # (variant, nodes) -> runs without exchange

_TONES = {5: "compute", 3: "communication", 4: "input"}  # none of the first ones, which tell variants apart
_HEADER = ("Variant", "Nodes", "Compute", "Communication", "Bounds", "Input", "Slowest rank")


@dataclass(frozen=True)
class TimeBreakdown:
    """Shares of an iteration, 0 to 1, None where nothing tells them.

    ``slowest`` is (rank, how much longer its iterations take than the median rank's, as a share).
    """

    row: Row
    exposed: float | None
    bounds: Bounds | None
    waited: float | None
    slowest: tuple[int, float] | None

    @property
    def compute(self) -> float | None:
        """What is left."""
        return None if self.exposed is None else 1 - self.exposed - (self.waited or 0.0)


def split(row: Row, without_allreduce: Sequence[TrialResult]) -> TimeBreakdown:
    """The split of *row*, with the trials of the same cell that left the exchange out."""
    trained, apart = iteration_seconds(row.runs), iteration_seconds(without_allreduce)
    exposed, bounds = intervals.exposed(trained, apart) if trained and apart else (None, None)
    if row.ranks == 1:
        exposed, bounds = 0.0, None
    waited = [run.training.input_wait for run in row.runs if run.training.input_wait is not None]
    return TimeBreakdown(
        row, exposed, bounds, statistics.median(waited) if waited else None, slowest(without_allreduce or row.runs)
    )


def slowest(runs: Sequence[TrialResult]) -> tuple[int, float] | None:
    """The rank whose iterations take longest, and by how much longer than the median rank's.

    Ranks that exchange wait for each other, so that only runs without exchange show all of the difference.
    """
    told = [run.training.rank_seconds for run in runs if len(run.training.rank_seconds) > 1]
    if not told:
        return None
    means = [statistics.median(times) for times in zip(*told, strict=False)]
    worst = max(range(len(means)), key=means.__getitem__)
    middle = statistics.median(means)
    return (worst, means[worst] / middle - 1) if middle > 0 else None


def section(rows: Sequence[Row], without_allreduce: Silent) -> Section | None:
    """The splits of all rows that tell something of theirs."""
    breakdowns = [split(row, without_allreduce.get((row.line.variant, row.nodes), ())) for row in rows]
    telling = [
        each for each in breakdowns if (each.exposed is not None and without_allreduce) or each.waited is not None
    ]
    if not telling:
        return None
    said = ["Input is the host's waiting for batches."]
    if without_allreduce:
        said.append(
            "Communication is what trials without the exchange of gradients save: the part of it that nothing hides. "
            "Those trials measure; they train nothing."
        )
    else:
        said.append("Trials without exchange (silent = true in a study) would tell computation from communication.")
    charts = (_chart(telling),) if without_allreduce else ()
    return Section("Where the time goes", tuple(said), _HEADER, tuple(map(_cells, telling)), 1, charts, in_picture=True)


def _cells(each: TimeBreakdown) -> tuple[str, ...]:
    worst = "-" if each.slowest is None else f"{each.slowest[0]} (+{share(each.slowest[1])})"
    exposed, waited = share(each.exposed), share(each.waited)
    bounds = interval(each.bounds, as_share=True)
    return (each.row.line.variant, str(each.row.nodes), share(each.compute), exposed, bounds, waited, worst)


def _chart(breakdowns: Sequence[TimeBreakdown]) -> Strips:
    several = len({each.row.line for each in breakdowns}) > 1
    strips = tuple(
        Strip(counted(each.row.line.variant if several else "", each.row.nodes, "node"), _parts(each))
        for each in breakdowns
        if each.exposed is not None
    )
    legend = tuple(_TONES.items())
    return Strips("Where the time goes", "shares of an iteration", "share", strips, legend, percent=True)


def _parts(each: TimeBreakdown) -> tuple[tuple[int, float], ...]:
    """Sizes that fill the strip; noise can make a share of communication negative, which cannot be drawn."""
    communication, waited = max(each.exposed or 0.0, 0.0), max(each.waited or 0.0, 0.0)
    sizes = (max(1 - communication - waited, 0.0), communication, waited)
    return tuple((tone, size / sum(sizes)) for (tone, _), size in zip(_TONES.items(), sizes, strict=True))
