"""What machines cost and who used them: lives and uses in, dollars out. Pure; times are Unix seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Kind = tuple[str, str, str]  # type, zone, market


@dataclass(frozen=True)
class Curve:
    """A price in US dollars per hour: `changes` are (from when, price) in order; the first also holds before."""

    changes: tuple[tuple[float, float], ...]

    def cost(self, began: float, ended: float) -> float:
        """US dollars for one machine from *began* to *ended*."""
        at = max(0, bisect_right([time for time, _ in self.changes], began) - 1)
        total = 0.0
        while began < ended:
            until = min(ended, self.changes[at + 1][0]) if at + 1 < len(self.changes) else ended
            total += (until - began) / 3600 * self.changes[at][1]
            began, at = until, at + 1
        return total


@dataclass(frozen=True)
class Life:
    """A machine from launch to end (None: it lives), ready for work from `ready` on; `name` is the node's."""

    machine: str
    name: str | None
    group: str
    kind: Kind
    began: float
    ready: float
    ended: float | None
    reclaimed: bool = False


@dataclass(frozen=True)
class Use:
    """A run's hold of a machine: at hand from `began`, training from `started`; `ended` is None while it goes on."""

    run: str
    owner: str
    team: str
    machine: str
    began: float
    started: float
    ended: float | None


@dataclass(frozen=True)
class Share:
    """What one run cost: node-hours, and dollars before and while its program ran."""

    run: str
    owner: str
    team: str
    hours: float
    waiting: float
    training: float

    @property
    def dollars(self) -> float:
        """All of it."""
        return self.waiting + self.training


@dataclass(frozen=True)
class MachineBill:
    """What one machine cost, dollars by what it did."""

    life: Life
    hours: float
    boot: float
    used: float
    idle: float

    @property
    def dollars(self) -> float:
        """All of it."""
        return self.boot + self.used + self.idle


@dataclass(frozen=True)
class Bill:
    """All machines and all runs of a time."""

    machines: tuple[MachineBill, ...]
    runs: tuple[Share, ...]

    @property
    def dollars(self) -> float:
        """What all machines cost."""
        return sum(each.dollars for each in self.machines)

    def total(self, what: str) -> float:
        """The dollars of `boot`, `used` or `idle` over all machines."""
        return float(sum(getattr(each, what) for each in self.machines))

    def by(self, what: str) -> dict[str, float]:
        """The runs' dollars by `owner` or `team`, the dearest first."""
        found: dict[str, float] = defaultdict(float)
        for each in self.runs:
            found[getattr(each, what)] += each.dollars
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def make_bill(
    lives: Sequence[Life], uses: Sequence[Use], curves: Mapping[Kind, Curve], since: float, now: float
) -> Bill:
    """The bill from *since* to *now*; runs that share a machine share its price, for as long as they do."""
    shares: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    machines = []
    for life in lives:
        began, ended = max(life.began, since), min(life.ended or now, now)
        if began >= ended:
            continue
        on_it = [use for use in uses if use.machine in (life.machine, life.name)]
        spent = {"boot": 0.0, "used": 0.0, "idle": 0.0}
        for start, end, there in _slices(life, on_it, began, ended, now):
            price = curves[life.kind].cost(start, end)
            spent["used" if there else "boot" if end <= life.ready else "idle"] += price
            for use in there:
                share = shares[use.run]
                share[0] += (end - start) / 3600 / len(there)
                share[1 if end <= use.started else 2] += price / len(there)
        machines.append(MachineBill(life, (ended - began) / 3600, **spent))
    who = {use.run: use for use in uses}
    runs = tuple(Share(run, who[run].owner, who[run].team, *amounts) for run, amounts in sorted(shares.items()))
    return Bill(tuple(machines), runs)


def _slices(
    life: Life, uses: Sequence[Use], began: float, ended: float, now: float
) -> Iterator[tuple[float, float, list[Use]]]:
    """A machine's time in pieces in which nothing changes, each with the uses of it."""
    marks = [life.ready, *(mark for use in uses for mark in (use.began, use.started, use.ended or now))]
    cuts = sorted({began, ended, *(mark for mark in marks if began < mark < ended)})
    for start, end in pairwise(cuts):
        there = [use for use in uses if use.began <= start and end <= (use.ended or now)]
        one_each = {use.run: use for use in there}
        yield start, end, list(one_each.values())
