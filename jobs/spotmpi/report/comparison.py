"""Two sweeps of the same work, row by row: what changed between them, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.core.errors import InputError, Problem
from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report import trial_results
from spotmpi.report.effects import NOISE, judged
from spotmpi.report.report import Report
from spotmpi.report.rows import Row, kept

# What a comparison is there to show; anything else that differs makes it another work.
_CHANGES = ("code", "versions", "image")


@dataclass(frozen=True)
class Change:
    """One row of both: rates before and after, and their ratio."""

    before: Row
    after: Row
    ratio: float
    bounds: Bounds | None

    @property
    def verdict(self) -> str:
        """Whether it is more than noise."""
        return judged(self.ratio, self.bounds)

    def below(self, limit: float) -> bool:
        """Whether the rate fell below *limit* times what it was, by more than noise; a single trial counts as it is."""
        return self.ratio < limit and self.verdict != NOISE


@dataclass(frozen=True)
class Comparison:
    """``changed`` says what differs on purpose (code, versions, image), ``unlike`` what makes it different work."""

    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    unlike: tuple[str, ...]
    alone: tuple[str, ...]

    def below(self, limit: float) -> list[Change]:
        """The rows that fell below *limit*."""
        return [change for change in self.changes if change.below(limit)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "changed": self.changed,
            "different_work": self.unlike,
            "in_one_only": self.alone,
            "rows": [_json(change) for change in self.changes],
        }


def compare(before: Report, after: Report, force: bool = False) -> Comparison:
    """Both reports row by row.

    Raises:
        InputError: no row is in both, or they measured different work (with *force* they are compared, and marked).
    """
    earlier, later = _cells(before), _cells(after)
    both = [key for key in earlier if key in later]
    if not both:
        remedy = "the two have no variant and node count in common that has a rate; measure the same cells"
        raise InputError([Problem("--compare", None, remedy)])
    first, second = earlier[both[0]].runs[0], later[both[0]].runs[0]
    told = dict.fromkeys(trial_results.differences(first, second))
    unlike = [each for each in told if not each.startswith(_CHANGES)]
    if unlike and not force:
        remedy = f"different work ({'; '.join(unlike)}): compare them with --force, and they are marked"
        raise InputError([Problem("--compare", None, remedy)])
    changes = tuple(_change(earlier[key], later[key]) for key in both)
    alone = [_named(key) for key in (*earlier, *later) if key not in both]
    return Comparison(changes, tuple(each for each in told if each not in unlike), tuple(unlike), tuple(alone))


def named(row: Row) -> str:
    """A row in words."""
    return _named((row.line.variant, row.nodes, row.slots))


_Key = tuple[str, int, int]


def _named(key: _Key) -> str:
    variant, nodes, slots = key
    of_slots = "" if slots == 1 else f" of {slots} slots"
    return f"{variant}, {nodes} node{'s' * (nodes > 1)}{of_slots}"


def _cells(report: Report) -> dict[_Key, Row]:
    return {(row.line.variant, row.nodes, row.slots): row for row in report.rows if kept(row.runs)}


def _change(before: Row, after: Row) -> Change:
    earlier, later = kept(before.runs), kept(after.runs)
    return Change(before, after, intervals.ratio(later, earlier), intervals.of_ratio(later, earlier))


def _json(change: Change) -> dict[str, Any]:
    bounds: Sequence[float | None] = (change.bounds.low, change.bounds.high) if change.bounds else (None, None)
    return {
        "row": named(change.before),
        "before": change.before.iterations_per_second,
        "after": change.after.iterations_per_second,
        "ratio": change.ratio,
        "low": bounds[0],
        "high": bounds[1],
        "bounds": change.bounds.kind if change.bounds else None,
        "verdict": change.verdict,
    }
