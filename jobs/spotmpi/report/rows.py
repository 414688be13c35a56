"""Rows of a report: the results of all trials of a configuration. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotmpi.agent import record
from spotmpi.agent.progress import REMEDY
from spotmpi.agent.protocol import STRONG, WEAK
from spotmpi.core.wording import counted
from spotmpi.forecast.model import EFFICIENCY_LIMIT
from spotmpi.metrics import intervals
from spotmpi.report.figures import share
from spotmpi.report.trial_results import TrialResult

SPREAD_LIMIT = 0.05
EDGE_LIMIT = 0.05


@dataclass(frozen=True)
class Line:
    """A line of a chart: one variant, one kind of scaling, one batch.

    ``batch`` is the global one under strong scaling and that of a worker under weak scaling; both are None if the
    program does not report samples.
    """

    variant: str
    scaling: str | None
    batch: int | None


@dataclass(frozen=True)
class Row:
    """One configuration; rates are medians over its ``runs``.

    ``low`` and ``high`` are the bounds of the rate, of the kind ``bounds``, and ``spread`` is their distance relative
    to the rate; a single trial has the spread of its iterations and no bounds. The bounds of the efficiency include
    the noise of its base.
    """

    line: Line
    nodes: int
    slots: int
    runs: tuple[TrialResult, ...]
    iterations_per_second: float | None
    low: float | None
    high: float | None
    bounds: str
    spread: float | None
    samples_per_second: float | None
    efficiency: float | None
    efficiency_bounds: intervals.Bounds | None
    base: str | None
    loss: float | None
    quality: tuple[str, float] | None
    interruptions: int
    failures: int
    flags: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.nodes * self.slots

    @property
    def is_base(self) -> bool:
        """Whether this row is the base of the efficiencies of its line."""
        return self.efficiency is not None and self.base == layout(self.nodes, self.slots)

    @property
    def typical(self) -> TrialResult | None:
        """The run whose rate is closest to that of the row."""
        rate = self.iterations_per_second
        if rate is None:
            return None
        return min(self.runs, key=lambda run: abs((run.iterations_per_second or 0.0) - rate))


def rows(runs: Iterable[TrialResult], marks: Callable[[TrialResult], Sequence[str]] = lambda run: ()) -> list[Row]:
    """The rows of *runs*, in order of variants and ranks; *marks* gives additional flags of a run."""
    runs = list(runs)
    # The kind of scaling follows from the batches where the program does not report it.
    kinds = {variant: _kind([run for run in runs if run.variant == variant]) for variant in {r.variant for r in runs}}
    lines = [_line(run, run.scaling or kinds[run.variant]) for run in runs]
    groups: dict[tuple[Line, int, int], list[TrialResult]] = {}
    for run, line in zip(runs, lines, strict=True):
        groups.setdefault((line, run.nodes, run.slots), []).append(run)
    order = list(dict.fromkeys(lines))
    result: list[Row] = []
    for line in order:
        own = {key[1:]: group for key, group in groups.items() if key[0] == line}
        keys = sorted(own, key=lambda key: (key[0] * key[1], key[0]))
        base = _base(line, [own[key] for key in keys])
        result += [_row(line, own[key], base, marks) for key in keys]
    return result


def iteration_seconds(runs: Iterable[TrialResult]) -> list[tuple[float, ...]]:
    """The seconds of the counted iterations, of each run with enough of them."""
    return [run.training.rates.iteration_seconds for run in runs if run.training.rates]


def layout(nodes: int, slots: int) -> str:
    """Ranks, nodes and slots as text."""
    ranks = nodes * slots
    return f"{counted(ranks, 'rank')} ({counted(nodes, 'node')} \N{MULTIPLICATION SIGN} {counted(slots, 'slot')})"


def _line(run: TrialResult, scaling: str | None) -> Line:
    samples = run.samples_per_iteration
    if samples is None or scaling is None:
        return Line(run.variant, None, samples)
    return Line(run.variant, scaling, samples if scaling == STRONG else samples // run.ranks)


def _kind(runs: Sequence[TrialResult]) -> str | None:
    batches = {(run.samples_per_iteration, run.ranks) for run in runs if run.samples_per_iteration is not None}
    if not batches:
        return None
    if len({batch for batch, _ in batches}) == 1:
        return STRONG
    # Weak scaling has one line for each batch per worker.
    return WEAK


@dataclass(frozen=True)
class _Base:
    """The base of efficiencies: samples/s of one rank, its layout, and its trials."""

    samples: float
    layout: str
    runs: Sequence[TrialResult]


def _base(line: Line, groups: Sequence[Sequence[TrialResult]]) -> _Base | None:
    """The smallest number of ranks with a rate, if there is another one to compare with."""
    rated = [group for group in groups if _median(run.iterations_per_second for run in group) is not None]
    if line.batch is None or len(rated) < 2:
        return None
    first = rated[0][0]
    rate = _median(run.iterations_per_second for run in rated[0])
    assert rate is not None and first.samples_per_iteration is not None
    return _Base(rate * first.samples_per_iteration / first.ranks, layout(first.nodes, first.slots), rated[0])


def _row(
    line: Line, runs: Sequence[TrialResult], base: _Base | None, marks: Callable[[TrialResult], Sequence[str]]
) -> Row:
    """The row of *runs* of one configuration, with its efficiency against *base*, if there is one."""
    first = runs[0]
    rates = [rate for run in runs if (rate := run.iterations_per_second) is not None]
    rate = statistics.median(rates) if rates else None
    low, high, bounds, spread = _bounds(runs)
    samples = rate * first.samples_per_iteration if rate and first.samples_per_iteration else None
    efficiency = samples / first.ranks / base.samples if samples and base else None
    qualities = [run.quality for run in runs if run.quality]
    quality = _median(value for name, value in qualities if name == qualities[0][0])
    return Row(
        line=line,
        nodes=first.nodes,
        slots=first.slots,
        runs=tuple(runs),
        iterations_per_second=rate,
        low=low,
        high=high,
        bounds=bounds,
        spread=spread,
        samples_per_second=samples,
        efficiency=efficiency,
        efficiency_bounds=_efficiency_bounds(efficiency, runs, base.runs) if efficiency and base else None,
        base=base.layout if base else None,
        loss=_median(run.loss for run in runs),
        quality=None if quality is None else (qualities[0][0], quality),
        interruptions=sum(run.interruptions for run in runs),
        failures=sum(run.failures for run in runs),
        flags=(*_flags(runs, spread, efficiency), *dict.fromkeys(mark for run in runs for mark in marks(run))),
    )


def _efficiency_bounds(
    efficiency: float, runs: Sequence[TrialResult], base: Sequence[TrialResult]
) -> intervals.Bounds | None:
    """The bounds of an efficiency, scaled from those of the ratio of the rates; the base itself has none."""
    above, below = iteration_seconds(runs), iteration_seconds(base)
    result = None if runs is base or not above or not below else intervals.ratio_bounds(above, below)
    if result is None:
        return None
    scale = efficiency / intervals.ratio(above, below)
    return intervals.Bounds(result.low * scale, result.high * scale, result.kind)


def _bounds(runs: Sequence[TrialResult]) -> tuple[float | None, float | None, str, float | None]:
    """Low, high, their kind, and the spread."""
    trials = iteration_seconds(runs)
    result = intervals.rate_bounds(trials)
    if result:
        middle = statistics.median(intervals.rate(trial) for trial in trials)
        return result.low, result.high, result.kind, (result.high - result.low) / middle
    only = next((run.training.rates for run in runs if run.training.rates), None)
    return None, None, "interquartile range of the iterations (IQR)", only.iqr if only else None


def _flags(runs: Sequence[TrialResult], spread: float | None, efficiency: float | None) -> list[str]:
    """What a reader has to know about the runs of a row, in words for its notes."""
    result = []
    if any(run.oversubscribed for run in runs):
        result.append("oversubscribed")
    if any(run.training.context.get("allreduce") is False for run in runs):
        result.append("without allreduce: this is not training")
    if sizes := sorted({size for run in runs if len(run.sizes) > 1 for size in run.sizes}):
        result.append(
            f"worked on {' and '.join(map(str, sizes))} nodes in turn: its rate is not that of one number of nodes"
        )
    if any(run.synthetic for run in runs):
        result.append("synthetic data: only times are meaningful")
    if any(run.training.rates and run.training.rates.by_arrival for run in runs):
        result.append("timed by arrival of lines")
    if spread is not None and spread > SPREAD_LIMIT:
        result.append(f"spread above {share(SPREAD_LIMIT, 0)}")
    if efficiency is not None and efficiency > EFFICIENCY_LIMIT:
        result.append(f"efficiency above {share(EFFICIENCY_LIMIT, 0)}")
    if _edges_differ(runs):
        result.append(f"first and last window differ by more than {share(EDGE_LIMIT, 0)}")
    for run in runs:
        if run.training.rates is None:
            few = f"no rate from {counted(run.training.reported, 'iteration')}: {run.training.unrated}"
            result.append(f"{run.run}: {few if run.training.reported else f'no iterations reported; {REMEDY}'}")
        if run.state != record.SUCCEEDED:
            result.append(f"{run.run}: {run.state}")
    return result


def _edges_differ(runs: Sequence[TrialResult]) -> bool:
    """Whether iterations became faster or slower within runs, as when burst credits run out."""
    edges = [
        result
        for run in runs
        if run.training.rates and (result := intervals.edges(run.training.rates.iteration_seconds))
    ]
    return bool(edges) and abs(statistics.median(last / first for first, last in edges) - 1) > EDGE_LIMIT


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


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
