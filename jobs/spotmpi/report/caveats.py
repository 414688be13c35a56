"""What a careful reader would ask of a report, and the answer where it is bad. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from spotmpi.metrics import intervals
from spotmpi.report.figures import share
from spotmpi.report.rows import Row, kept
from spotmpi.report.time_breakdown import slowest
from spotmpi.report.trial_results import Measured

DRIFT_LIMIT = 0.05
SLOW_RANK_LIMIT = 0.05


def doubts(rows: Sequence[Row], silent: Mapping[tuple[str, int], Sequence[Measured]]) -> list[str]:
    """Warnings about how *rows* were measured."""
    runs = [run for row in rows for run in row.runs]
    return [*_repeats(rows), *_context(runs), *_code(runs), *_loss(runs), *_slow_ranks(rows, silent)]


def drift(before: Sequence[Measured], after: Sequence[Measured]) -> list[str]:
    """Whether the same trial went otherwise at the end than at the start."""
    first, last = ([intervals.rate(seconds) for seconds in kept(runs)] for runs in (before, after))
    if not first or not last:
        return []
    change = statistics.median(last) / statistics.median(first) - 1
    if abs(change) <= DRIFT_LIMIT:
        return []
    how = "faster" if change > 0 else "slower"
    return [f"Drift: after all trials the smallest cell was {share(abs(change))} {how} than before them."]


def _repeats(rows: Sequence[Row]) -> list[str]:
    fewest = min((len(kept(row.runs)) for row in rows), default=0)
    if not 1 < fewest < intervals.FEWEST_TRIALS:
        return []
    few = intervals.FEWEST_TRIALS
    return [f"Rows with fewer than {few} trials show their range; {few} repeats give a 95 % interval."]


def _context(runs: Iterable[Measured]) -> list[str]:
    lacking = [run.run for run in runs if not run.training.context.get("versions")]
    return [f"No versions were told by {_some(lacking)}: what ran is known from the spec only."] if lacking else []


def _code(runs: Iterable[Measured]) -> list[str]:
    changed = [run.run for run in runs if run.work["code"].get("diff")]
    return [f"The code of {_some(changed)} is in no commit: keep it to repeat this."] if changed else []


def _loss(runs: Iterable[Measured]) -> list[str]:
    lacking = [run.run for run in runs if run.training.rates and run.loss is None]
    return [f"No loss was told by {_some(lacking)}: nothing says that it learned at this speed."] if lacking else []


def _slow_ranks(rows: Sequence[Row], silent: Mapping[tuple[str, int], Sequence[Measured]]) -> list[str]:
    found = []
    for row in rows:
        worst = slowest(silent.get((row.line.variant, row.nodes), ()) or row.runs)
        if worst and worst[1] > SLOW_RANK_LIMIT:
            late = f"rank {worst[0]} takes {share(worst[1])} longer than the median rank"
            found.append(f"{row.line.variant}, {row.ranks} ranks: {late}, and all others wait for it.")
    return found


def _some(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"
