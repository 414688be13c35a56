"""What machines cost, and which runs used them. Pure functions; times are Unix seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Kind = tuple[str, str, str]  # type, zone, market
_FREE_TIME = 3600.0  # seconds


@dataclass(frozen=True)
class PriceCurve:
    """A price in US dollars per hour over time: `changes` are (time, price) in order; the first also holds before."""

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
class Lifetime:
    """A machine from launch to end (None while it runs), in service from `ready` on; `name` is the node's name.

    `extras` are the dollars per hour of what it has besides the instance: its disk and its address.
    A recorded bill and `spotmpi cost --json` have all of it.
    """

    machine: str
    name: str | None
    group: str
    kind: Kind
    began: float
    ready: float
    ended: float | None
    reclaimed: bool = False
    extras: float = 0.0

    def is_free(self, now: float) -> bool:
        """Whether AWS charges nothing for the instance: those that EC2 interrupts in their first hour are free.

        Source: Amazon EC2 User Guide, Billing for interrupted Spot Instances (Linux); disks and addresses are billed.
        """
        return self.reclaimed and (self.ended or now) - self.began < _FREE_TIME


@dataclass(frozen=True)
class Usage:
    """A run's time on a machine: allocated from `began`, training from `started`; `ended` is None until it ends."""

    run: str
    owner: str
    team: str
    machine: str
    began: float
    started: float
    ended: float | None


@dataclass(frozen=True)
class RunShare:
    """The cost of one run: node-hours, and dollars before and while its program ran."""

    run: str
    owner: str
    team: str
    hours: float
    waiting: float
    training: float

    @property
    def dollars(self) -> float:
        """The sum."""
        return self.waiting + self.training


@dataclass(frozen=True)
class MachineBill:
    """The cost of one machine, in dollars by what it did."""

    lifetime: Lifetime
    hours: float
    boot: float
    used: float
    idle: float

    @property
    def dollars(self) -> float:
        """The sum."""
        return self.boot + self.used + self.idle


@dataclass(frozen=True)
class Bill:
    """The cost of all machines and runs in a period."""

    machines: tuple[MachineBill, ...]
    runs: tuple[RunShare, ...]

    @property
    def dollars(self) -> float:
        """The cost of all machines."""
        return sum(each.dollars for each in self.machines)

    def total(self, what: str) -> float:
        """The dollars of `boot`, `used` or `idle` over all machines."""
        return float(sum(getattr(each, what) for each in self.machines))

    def by(self, what: str) -> dict[str, float]:
        """The runs' dollars by `owner` or `team`, the most expensive first."""
        totals: dict[str, float] = defaultdict(float)
        for each in self.runs:
            totals[getattr(each, what)] += each.dollars
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def make_bill(
    lifetimes: Sequence[Lifetime], uses: Sequence[Usage], curves: Mapping[Kind, PriceCurve], since: float, now: float
) -> Bill:
    """The bill from *since* to *now*; runs on the same machine share its price while they do."""
    shares: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    machines = []
    for lifetime in lifetimes:
        began, ended = max(lifetime.began, since), min(lifetime.ended or now, now)
        if began >= ended:
            continue
        own = [use for use in uses if use.machine in (lifetime.machine, lifetime.name)]
        spent = {"boot": 0.0, "used": 0.0, "idle": 0.0}
        for start, end, active in _slices(lifetime, own, began, ended, now):
            price = (end - start) / 3600 * lifetime.extras
            price += 0.0 if lifetime.is_free(now) else curves[lifetime.kind].cost(start, end)
            spent["used" if active else "boot" if end <= lifetime.ready else "idle"] += price
            for use in active:
                share = shares[use.run]
                share[0] += (end - start) / 3600 / len(active)
                share[1 if end <= use.started else 2] += price / len(active)
        machines.append(MachineBill(lifetime, (ended - began) / 3600, **spent))
    runs_by_id = {use.run: use for use in uses}
    runs = tuple(
        RunShare(run, runs_by_id[run].owner, runs_by_id[run].team, *amounts) for run, amounts in sorted(shares.items())
    )
    return Bill(tuple(machines), runs)


def _slices(
    lifetime: Lifetime, uses: Sequence[Usage], began: float, ended: float, now: float
) -> Iterator[tuple[float, float, list[Usage]]]:
    """A machine's time in intervals in which nothing changes, each with the machine's uses."""
    marks = [lifetime.ready, *(mark for use in uses for mark in (use.began, use.started, use.ended or now))]
    cuts = sorted({began, ended, *(mark for mark in marks if began < mark < ended)})
    for start, end in pairwise(cuts):
        active = [use for use in uses if use.began <= start and end <= (use.ended or now)]
        by_run = {use.run: use for use in active}
        yield start, end, list(by_run.values())
