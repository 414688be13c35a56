"""Rows of a report: what the trials of one combination came to, side by side. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotmpi.forecast.series import EFFICIENCY_LIMIT
from spotmpi.metrics import intervals
from spotmpi.report.figures import share
from spotmpi.report.trial_results import STRONG, WEAK, TrialResult

SPREAD_LIMIT = 0.05
EDGE_LIMIT = 0.05


@dataclass(frozen=True)
class Line:
    """Rows that may stand in one chart line: one variant, one kind of scaling, one batch.

    ``batch`` is the global one under strong scaling and one worker's under weak scaling; both are None where the
    program does not tell samples.
    """

    variant: str
    scaling: str | None
    batch: int | None


@dataclass(frozen=True)
class Row:
    """One combination; rates are medians over its ``runs`` that have one.

    ``low`` and ``high`` bound the rate as ``bounds`` says, and ``spread`` is their distance over the rate; with a
    single trial ``spread`` is that of its iterations, and there are no bounds. Those of the efficiency hold the noise
    of the row that it is against as well.
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
        """Whether the efficiencies of this line are against this row."""
        return self.efficiency is not None and self.base == place(self.nodes, self.slots)

    @property
    def typical(self) -> TrialResult | None:
        """The run whose rate is nearest to the row's."""
        rate = self.iterations_per_second
        if rate is None:
            return None
        return min(self.runs, key=lambda run: abs((run.iterations_per_second or 0.0) - rate))


def rows(runs: Iterable[TrialResult], marks: Callable[[TrialResult], Sequence[str]] = lambda run: ()) -> list[Row]:
    """The rows of *runs*, in order of variants and ranks; *marks* gives what else a run is to be marked with."""
    runs = list(runs)
    lines = _lines(runs)
    groups: dict[tuple[Line, int, int], list[TrialResult]] = {}
    for run, line in zip(runs, lines, strict=True):
        groups.setdefault((line, run.nodes, run.slots), []).append(run)
    order = list(dict.fromkeys(lines))
    found: list[Row] = []
    for line in order:
        own = {key[1:]: group for key, group in groups.items() if key[0] == line}
        keys = sorted(own, key=lambda key: (key[0] * key[1], key[0]))
        base = _base(line, [own[key] for key in keys])
        found += [_row(line, own[key], base, marks) for key in keys]
    return found


def iteration_seconds(runs: Iterable[TrialResult]) -> list[tuple[float, ...]]:
    """The seconds of the iterations that count, of each run that has enough of them."""
    return [run.training.rates.iteration_seconds for run in runs if run.training.rates]


def place(nodes: int, slots: int) -> str:
    """Ranks and where they are, in words."""
    ranks = nodes * slots
    words = [f"{ranks} rank{'s' * (ranks > 1)}", f"{nodes} node{'s' * (nodes > 1)}", f"{slots} slot{'s' * (slots > 1)}"]
    return f"{words[0]} ({words[1]} \N{MULTIPLICATION SIGN} {words[2]})"


def _lines(runs: Sequence[TrialResult]) -> list[Line]:
    """The chart line of each run; where programs do not tell the kind of scaling, their batches do."""
    kinds = {variant: _kind([run for run in runs if run.variant == variant]) for variant in {r.variant for r in runs}}
    return [_line(run, run.scaling or kinds[run.variant]) for run in runs]


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
    # Anything else is one line per batch and worker: never an increase of both in one line.
    return WEAK


@dataclass(frozen=True)
class _Base:
    """What efficiencies are against: samples/s of one rank, where, and the trials behind it."""

    samples: float
    place: str
    runs: Sequence[TrialResult]


def _base(line: Line, groups: Sequence[Sequence[TrialResult]]) -> _Base | None:
    """The smallest number of ranks with a rate, where there is another to compare with."""
    rated = [group for group in groups if _median(run.iterations_per_second for run in group) is not None]
    if line.batch is None or len(rated) < 2:
        return None
    first = rated[0][0]
    rate = _median(run.iterations_per_second for run in rated[0])
    assert rate is not None and first.samples_per_iteration is not None
    return _Base(rate * first.samples_per_iteration / first.ranks, place(first.nodes, first.slots), rated[0])


def _row(
    line: Line, runs: Sequence[TrialResult], base: _Base | None, marks: Callable[[TrialResult], Sequence[str]]
) -> Row:
    first = runs[0]
    rates = [rate for run in runs if (rate := run.iterations_per_second) is not None]
    rate = statistics.median(rates) if rates else None
    low, high, bounds, spread = _bounds(runs)
    samples = rate * first.samples_per_iteration if rate and first.samples_per_iteration else None
    efficiency = samples / first.ranks / base.samples if samples and base else None
    qualities = [run.quality for run in runs if run.quality]
    quality = _median(value for _, value in qualities)
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
        efficiency_bounds=_around(efficiency, runs, base.runs) if efficiency and base else None,
        base=base.place if base else None,
        loss=_median(run.loss for run in runs),
        quality=None if quality is None else (qualities[0][0], quality),
        interruptions=sum(run.interruptions for run in runs),
        failures=sum(run.failures for run in runs),
        flags=(*_flags(runs, spread, efficiency), *dict.fromkeys(mark for run in runs for mark in marks(run))),
    )


def _around(efficiency: float, runs: Sequence[TrialResult], base: Sequence[TrialResult]) -> intervals.Bounds | None:
    """The bounds of an efficiency: those of the ratio of the two rates, in its scale; the base itself has none."""
    above, below = iteration_seconds(runs), iteration_seconds(base)
    found = None if runs is base or not above or not below else intervals.ratio_bounds(above, below)
    if found is None:
        return None
    scale = efficiency / intervals.ratio(above, below)
    return intervals.Bounds(found.low * scale, found.high * scale, found.kind)


def _bounds(runs: Sequence[TrialResult]) -> tuple[float | None, float | None, str, float | None]:
    """Low, high, what they are, and the spread."""
    trials = iteration_seconds(runs)
    found = intervals.rate_bounds(trials)
    if found:
        middle = statistics.median(intervals.rate(trial) for trial in trials)
        return found.low, found.high, found.kind, (found.high - found.low) / middle
    only = next((run.training.rates for run in runs if run.training.rates), None)
    return None, None, "distance of the quartiles of the iterations (IQR)", only.iqr if only else None


def _flags(runs: Sequence[TrialResult], spread: float | None, efficiency: float | None) -> list[str]:
    found = []
    if any(run.oversubscribed for run in runs):
        found.append("oversubscribed")
    if any(run.training.context.get("exchange") is False for run in runs):
        found.append("without exchange of gradients: this is no training")
    if any(run.synthetic for run in runs):
        found.append("synthetic data: only the times mean anything")
    if any(run.training.rates and run.training.rates.by_arrival for run in runs):
        found.append("timed by arrival of lines")
    if spread is not None and spread > SPREAD_LIMIT:
        found.append(f"spread above {share(SPREAD_LIMIT, 0)}")
    if efficiency is not None and efficiency > EFFICIENCY_LIMIT:
        found.append(f"efficiency above {share(EFFICIENCY_LIMIT, 0)}")
    if _drifts(runs):
        found.append(f"first and last window more than {share(EDGE_LIMIT, 0)} apart")
    for run in runs:
        if run.training.rates is None:
            found.append(f"{run.run}: only {run.training.reported} iterations timed, no rate after the warm-up")
        if run.state != "succeeded":
            found.append(f"{run.run}: {run.state}")
    return found


def _drifts(runs: Sequence[TrialResult]) -> bool:
    """Whether iterations became faster or slower within runs, as they do when burst credits run out."""
    edges = [
        found for run in runs if run.training.rates and (found := intervals.edges(run.training.rates.iteration_seconds))
    ]
    return bool(edges) and abs(statistics.median(last / first for first, last in edges) - 1) > EDGE_LIMIT


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
