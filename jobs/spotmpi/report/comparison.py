"""Two sweeps of the same work, row by row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.core import wording
from spotmpi.core.errors import input_error
from spotmpi.core.wording import counted
from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report import trial_results
from spotmpi.report.report import Report
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.report.scaling import NOISE, significance

# Differences that a comparison is meant to show; any other makes it different work.
_CHANGES = ("code", "versions", "image")


@dataclass(frozen=True)
class Change:
    """A row of both sweeps: before, after, and the ratio of the rates."""

    before: Row
    after: Row
    ratio: float
    bounds: Bounds | None
    holds: bool = True  # among all rows

    @property
    def verdict(self) -> str:
        """Whether the change exceeds noise."""
        return significance(self.ratio, self.bounds, self.holds)

    def below(self, limit: float) -> bool:
        """Whether the rate fell below *limit* times the earlier one by more than noise; a single trial has no noise."""
        return self.ratio < limit and self.verdict != NOISE


@dataclass(frozen=True)
class Comparison:
    """Two sweeps, row by row.

    ``changed`` lists differences in code, versions and image, ``different_work`` all others, ``missing`` the rows of
    the first sweep that have no rate in the second one, and ``added`` those of the second alone.
    """

    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    different_work: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The rows that only one of the sweeps has."""
        return (*self.missing, *self.added)

    def below(self, limit: float) -> list[Change]:
        """The rows that fell below *limit*."""
        return [change for change in self.changes if change.below(limit)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "changed": self.changed,
            "different_work": self.different_work,
            "in_one_only": self.unmatched,
            "missing": self.missing,
            "rows": [_json(change) for change in self.changes],
        }


def compare(before: Report, after: Report, force: bool = False) -> Comparison:
    """Compare two reports row by row.

    Raises:
        InputError: they have no row in common, or measured different work (*force* compares and marks them).
    """
    earlier, later = _cells(before), _cells(after)
    both = [key for key in earlier if key in later]
    if not both:
        one, other = ("; ".join(map(_key_name, each)) or "nothing measured" for each in (earlier, later))
        remedy = f"no figures in common: one has {one}, the other {other}; compare runs of the same variants and nodes"
        raise input_error(wording.option("compare"), None, remedy)
    # Of each row: variants of the same name may have other settings in the two sweeps.
    pairs = [(earlier[key].runs[0], later[key].runs[0]) for key in both]
    differences = dict.fromkeys(each for pair in pairs for each in trial_results.differences(*pair))
    different_work = [each for each in differences if not each.startswith(_CHANGES)]
    if different_work and not force:
        remedy = (
            f"different work ({'; '.join(different_work)}): use {wording.option('force')} to compare anyway, marked"
        )
        raise input_error(wording.option("compare"), None, remedy)
    compared = [(iteration_seconds(later[key].runs), iteration_seconds(earlier[key].runs)) for key in both]
    together = intervals.hold_together([[pair] for pair in compared])
    changes = tuple(
        Change(earlier[key], later[key], intervals.ratio(*pair), intervals.ratio_bounds(*pair), holds)
        for key, pair, holds in zip(both, compared, together, strict=True)
    )
    return Comparison(
        changes,
        tuple(each for each in differences if each not in different_work),
        tuple(different_work),
        tuple(_key_name(key) for key in earlier if key not in later),
        tuple(_key_name(key) for key in later if key not in earlier),
    )


def row_name(row: Row) -> str:
    """A row as text, such as "base, 2 nodes"."""
    return _key_name((row.line.variant, row.nodes, row.slots))


_Key = tuple[str, int, int]


def _key_name(key: _Key) -> str:
    variant, nodes, slots = key
    of_slots = "" if slots == 1 else f" of {slots} slots"
    return f"{variant}, {counted(nodes, 'node')}{of_slots}"


def _cells(report: Report) -> dict[_Key, Row]:
    return {(row.line.variant, row.nodes, row.slots): row for row in report.rows if iteration_seconds(row.runs)}


def _json(change: Change) -> dict[str, Any]:
    bounds: Sequence[float | None] = (change.bounds.low, change.bounds.high) if change.bounds else (None, None)
    return {
        "row": row_name(change.before),
        "before": change.before.iterations_per_second,
        "after": change.after.iterations_per_second,
        "ratio": change.ratio,
        "low": bounds[0],
        "high": bounds[1],
        "bounds": change.bounds.kind if change.bounds else None,
        "verdict": change.verdict,
    }
