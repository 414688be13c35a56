"""Rates against each other: the values of a parameter, and two sweeps of the same work. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.core import hints
from spotmpi.core.errors import InputError, Problem
from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report import trial_results
from spotmpi.report.chart import Bar, BarChart
from spotmpi.report.figures import counted, factor, interval
from spotmpi.report.report import Report, Section
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.spec.variants import Variant

_COLOUR = 2
NOISE = "within noise"
UNSURE = "unknown (single trial)"


@dataclass(frozen=True)
class Effect:
    """The rate with a value relative to that with ``base``, over ``pairs`` of otherwise equal configurations."""

    parameter: str
    value: str
    base: str
    nodes: int
    ratio: float
    bounds: Bounds | None
    pairs: int

    @property
    def verdict(self) -> str:
        """Whether the change exceeds noise."""
        return significance(self.ratio, self.bounds)


def significance(ratio: float, bounds: Bounds | None) -> str:
    """Whether a ratio of rates differs from 1 by more than noise, in words."""
    if bounds is None:
        return UNSURE
    if bounds.contains(1.0):
        return NOISE
    return "faster" if ratio > 1 else "slower"


def effects(rows: Sequence[Row], variants: Sequence[Variant]) -> list[Effect]:
    """The effects of all parameters, separately for each node count; of samples/s where the global batch differs."""
    measured = []
    per_sample = _batches_differ(rows)
    trials = {(row.nodes, row.line.variant): _trial_seconds(row, per_sample) for row in rows if row.typical}
    for name in dict.fromkeys(each for variant in variants for each, _ in _values(variant)):
        values = list(dict.fromkeys(dict(_values(variant)).get(name, "") for variant in variants))
        for value in values[1:]:
            for nodes in sorted({row.nodes for row in rows}):
                own = {variant: seconds for (count, variant), seconds in trials.items() if count == nodes}
                pairs = _pairs(own, variants, name, value, values[0])
                if pairs:
                    ratio, bounds = intervals.mean_ratio(pairs)
                    words = name.replace("_", " ")
                    measured.append(Effect(words, value, values[0], nodes, ratio, bounds, len(pairs)))
    return measured


def effect_section(rows: Sequence[Row], variants: Sequence[Variant]) -> Section | None:
    """The effects as table and chart."""
    measured = effects(rows, variants)
    if not measured:
        return None
    rate = "samples/s" if _batches_differ(rows) else "iterations/s"
    text = (
        f"{rate.capitalize()} relative to the first value of the same parameter, all else being equal; the geometric "
        "mean of several pairs.",
    )
    chart = _effect_chart(measured, rate)
    header = ("Parameter", "Value", "Base value", "Nodes", "Effect", "Bounds", "Pairs", "Verdict")
    return Section(
        "Effect of each parameter", text, header, tuple(map(_effect_cells, measured)), 3, (chart,), in_picture=True
    )


def _effect_chart(measured: Sequence[Effect], rate: str) -> BarChart:
    """The effect of each value as a bar, muted where it may be noise."""
    bars = tuple(
        Bar(
            f"{counted(each.value, each.nodes, 'node')}: {factor(each.ratio)}, {each.verdict}",
            value=each.ratio,
            bounds=(each.bounds.low, each.bounds.high) if each.bounds else None,
            colour=_COLOUR,
            muted=each.verdict in (NOISE, UNSURE),
        )
        for each in measured
    )
    kinds = sorted({each.bounds.kind for each in measured if each.bounds})
    bases = {each.base for each in measured}
    base = f"relative to {bases.pop()}" if len(bases) == 1 else "relative to the first value of each parameter"
    return BarChart("Effect of each parameter", ", ".join([base, *kinds]), f"ratio of {rate}", bars, mark=1.0)


def _effect_cells(each: Effect) -> tuple[str, ...]:
    differences = (each.parameter, each.value, each.base, str(each.nodes), factor(each.ratio))
    return (*differences, interval(each.bounds), str(each.pairs), each.verdict)


def _values(variant: Variant) -> tuple[tuple[str, str], ...]:
    """The values of a variant; without a study file its name is the value of the only parameter."""
    return variant.values or (("variant", variant.name),)


_Pair = tuple[Sequence[intervals.Seconds], Sequence[intervals.Seconds]]


def _batches_differ(rows: Sequence[Row]) -> bool:
    """Whether configurations on the same nodes have different global batches, so that iterations/s do not compare."""
    batches = {(row.nodes, row.runs[0].samples_per_iteration) for row in rows}
    return len(batches) > len({nodes for nodes, _ in batches}) and all(samples for _, samples in batches)


def _trial_seconds(row: Row, per_sample: bool) -> Sequence[intervals.Seconds]:
    """The seconds of the iterations of each trial, or those of one sample in each."""
    trials, samples = iteration_seconds(row.runs), row.runs[0].samples_per_iteration
    return [[seconds / samples for seconds in trial] for trial in trials] if per_sample and samples else trials


def _pairs(
    trials: Mapping[str, Sequence[intervals.Seconds]], variants: Sequence[Variant], name: str, value: str, base: str
) -> list[_Pair]:
    """Trials at *value* and at *base* of otherwise equal configurations."""
    return [
        (trials[variant.name], trials[other.name])
        for variant in variants
        for other in variants
        if dict(_values(variant)).get(name) == value
        and dict(_values(other)) == {**dict(_values(variant)), name: base}
        and {variant.name, other.name} <= set(trials)
    ]


# Differences that a comparison is meant to show; any other makes it different work.
_CHANGES = ("code", "versions", "image")


@dataclass(frozen=True)
class Change:
    """A row of both sweeps: before, after, and the ratio of the rates."""

    before: Row
    after: Row
    ratio: float
    bounds: Bounds | None

    @property
    def verdict(self) -> str:
        """Whether the change exceeds noise."""
        return significance(self.ratio, self.bounds)

    def below(self, limit: float) -> bool:
        """Whether the rate fell below *limit* times the earlier one by more than noise; a single trial has no noise."""
        return self.ratio < limit and self.verdict != NOISE


@dataclass(frozen=True)
class Comparison:
    """Two sweeps, row by row.

    ``changed`` lists differences in code, versions and image, ``different_work`` all others, and ``unmatched`` the rows
    that only one of the sweeps has.
    """

    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    different_work: tuple[str, ...]
    unmatched: tuple[str, ...]

    def below(self, limit: float) -> list[Change]:
        """The rows that fell below *limit*."""
        return [change for change in self.changes if change.below(limit)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "changed": self.changed,
            "different_work": self.different_work,
            "in_one_only": self.unmatched,
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
        remedy = "the sweeps have no measured variant and node count in common"
        raise InputError([Problem(hints.option("compare"), None, remedy)])
    # Of each row: variants of the same name may have other settings in the two sweeps.
    pairs = [(earlier[key].runs[0], later[key].runs[0]) for key in both]
    differences = dict.fromkeys(each for pair in pairs for each in trial_results.differences(*pair))
    different_work = [each for each in differences if not each.startswith(_CHANGES)]
    if different_work and not force:
        remedy = f"different work ({'; '.join(different_work)}): use {hints.option('force')} to compare anyway, marked"
        raise InputError([Problem(hints.option("compare"), None, remedy)])
    changes = tuple(_change(earlier[key], later[key]) for key in both)
    unmatched = [_key_name(key) for key in (*earlier, *later) if key not in both]
    return Comparison(
        changes,
        tuple(each for each in differences if each not in different_work),
        tuple(different_work),
        tuple(unmatched),
    )


def row_name(row: Row) -> str:
    """A row as text, such as "base, 2 nodes"."""
    return _key_name((row.line.variant, row.nodes, row.slots))


_Key = tuple[str, int, int]


def _key_name(key: _Key) -> str:
    variant, nodes, slots = key
    of_slots = "" if slots == 1 else f" of {slots} slots"
    return f"{variant}, {nodes} node{'s' * (nodes > 1)}{of_slots}"


def _cells(report: Report) -> dict[_Key, Row]:
    return {(row.line.variant, row.nodes, row.slots): row for row in report.rows if iteration_seconds(row.runs)}


def _change(before: Row, after: Row) -> Change:
    earlier, later = iteration_seconds(before.runs), iteration_seconds(after.runs)
    return Change(before, after, intervals.ratio(later, earlier), intervals.ratio_bounds(later, earlier))


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
