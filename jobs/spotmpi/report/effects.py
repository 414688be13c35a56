"""Which switch brought what: each level of a factor against the first one, all else being equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotmpi.metrics import intervals
from spotmpi.metrics.intervals import Bounds
from spotmpi.report.chart import Strip, Strips
from spotmpi.report.figures import counted
from spotmpi.report.rows import Row, kept
from spotmpi.report.section import Section, bounded, factor
from spotmpi.spec.variants import Variant

_TONE = 2
NOISE = "within noise"
UNSURE = "a single trial: not known"


@dataclass(frozen=True)
class Effect:
    """What ``level`` of a factor does to the rate: ``ratio`` against ``base``, over ``pairs`` of cells else equal."""

    factor: str
    level: str
    base: str
    nodes: int
    ratio: float
    bounds: Bounds | None
    pairs: int

    @property
    def verdict(self) -> str:
        """Whether it is more than noise."""
        return judged(self.ratio, self.bounds)


def judged(ratio: float, bounds: Bounds | None) -> str:
    """What a ratio of rates says, in words."""
    if bounds is None:
        return UNSURE
    if bounds.holds(1.0):
        return NOISE
    return "faster" if ratio > 1 else "slower"


def effects(rows: Sequence[Row], variants: Sequence[Variant]) -> list[Effect]:
    """The effects of all factors, at each node count: what a switch brings there says little of another."""
    found = []
    for name in dict.fromkeys(each for variant in variants for each, _ in _levels(variant)):
        levels = list(dict.fromkeys(dict(_levels(variant)).get(name, "") for variant in variants))
        for level in levels[1:]:
            for nodes in sorted({row.nodes for row in rows}):
                pairs = _pairs([row for row in rows if row.nodes == nodes], variants, name, level, levels[0])
                if pairs:
                    ratio, bounds = intervals.of_ratios(pairs)
                    words = name.replace("_", " ")
                    found.append(Effect(words, level, levels[0], nodes, ratio, bounds, len(pairs)))
    return found


def section(rows: Sequence[Row], variants: Sequence[Variant]) -> Section | None:
    """The effects as a table."""
    found = effects(rows, variants)
    if not found:
        return None
    said = (
        "Iterations/s against those of the first level of the same factor, all else being equal; where "
        "several pairs are, their geometric mean.",
    )
    chart = _chart(found)
    header = ("Factor", "Level", "Against", "Nodes", "Effect", "Bounds", "Pairs", "Verdict")
    return Section("Which switch brought what", said, header, tuple(map(_cells, found)), 3, (chart,), pictured=True)


def _chart(found: Sequence[Effect]) -> Strips:
    strips = tuple(
        Strip(
            f"{counted(each.level, each.nodes, 'node')}: {factor(each.ratio)}, {each.verdict}",
            value=each.ratio,
            bounds=(each.bounds.low, each.bounds.high) if each.bounds else None,
            tone=_TONE,
            faint=each.verdict in (NOISE, UNSURE),
        )
        for each in found
    )
    kinds = sorted({each.bounds.kind for each in found if each.bounds})
    bases = {each.base for each in found}
    against = f"against {bases.pop()}" if len(bases) == 1 else "against the first level of each factor"
    return Strips("Which switch brought what", ", ".join([against, *kinds]), "ratio of iterations/s", strips, mark=1.0)


def _cells(each: Effect) -> tuple[str, ...]:
    told = (each.factor, each.level, each.base, str(each.nodes), factor(each.ratio))
    return (*told, bounded(each.bounds), str(each.pairs), each.verdict)


def _levels(variant: Variant) -> tuple[tuple[str, str], ...]:
    """The levels of a study's variant; one that was given by name is a level of the only factor there is."""
    return variant.levels or (("variant", variant.name),)


_Pair = tuple[Sequence[intervals.Seconds], Sequence[intervals.Seconds]]


def _pairs(rows: Sequence[Row], variants: Sequence[Variant], name: str, level: str, base: str) -> list[_Pair]:
    """Trials at *level* and at *base* that are equal else."""
    trials = {row.line.variant: kept(row.runs) for row in rows if kept(row.runs)}
    return [
        (trials[variant.name], trials[other.name])
        for variant in variants
        for other in variants
        if dict(_levels(variant)).get(name) == level
        and dict(_levels(other)) == {**dict(_levels(variant)), name: base}
        and {variant.name, other.name} <= set(trials)
    ]
