"""The figures of a stream from the reports of its ranks, and what would make it faster. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spotmpi.agent import protocol
from spotmpi.agent.protocol import counted, dollars

RECENT = 30.0  # seconds of a rank's reports that rates come from
HIGH_SHARE = 0.1  # of its time that a rank waits, from which a remedy is named
LOW_SHARE = 0.5  # of their time that workers are busy, below which fewer may do
LOAD_INSIDE = 100.0  # MB/s of a rank, above which encryption costs more than loading inside the ranks
_MOST = 0.95  # of its time that a rank waits: what it would take without waiting is unknown above


class Figures(NamedTuple):
    """The figures of all ranks: counts since the attempt began, and rates and shares (0 to 1) of the time looked at.

    ``ranks_wait`` is the share of their time that ranks wait for batches, ``workers_wait`` the share that workers
    prepare nothing, ``postprocess_wait`` that of workers which only postprocess, ``mb_per_second`` what the busiest
    rank takes, and ``source`` the digest of the source list.
    """

    ranks: int
    workers: int
    batches: int
    fewest: int  # batches of a rank
    most: int
    skipped: int
    in_flight: int  # chunks
    batches_per_second: float
    mb_per_second: float
    ranks_wait: float
    workers_wait: float
    source: str | None = None
    postprocess_workers: int = 0  # where the postprocess has its own
    postprocess_wait: float = 0.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Figures:
        """The figures in what `to_json` returned."""
        return cls(**{key: value for key, value in values.items() if key != "advice"})

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        """Plain JSON values, with the advice; *price* is dollars per hour of a worker."""
        return {**self._asdict(), "advice": advice(self, price)}


class Reports:
    """The reports of the ranks of one stream, in the order in which they arrive."""

    def __init__(self) -> None:
        self._attempt: Any = None
        self._first: dict[int, Mapping[str, Any]] = {}  # report of each rank
        self._recent: dict[int, deque[Mapping[str, Any]]] = {}

    def add(self, report: dict[str, Any], attempt: Any) -> None:
        """Add a line of the kind `protocol.STREAM`, unless it is no report; a new attempt starts from zero."""
        if not protocol.valid(protocol.STREAM, report):
            return  # a program may print anything
        if attempt != self._attempt or any(each[-1]["ranks"] != report["ranks"] for each in self._recent.values()):
            self._attempt, self._first, self._recent = attempt, {}, {}
        rank = int(report["rank"])
        recent = self._recent.setdefault(rank, deque())
        if recent and report["seconds"] < recent[-1]["seconds"]:  # the rank iterates over a stream anew
            recent.clear()
            self._first.pop(rank)
        self._first.setdefault(rank, report)
        recent.append(report)
        while len(recent) > 2 and recent[1]["seconds"] < report["seconds"] - RECENT:
            recent.popleft()

    def recent(self) -> Figures | None:
        """The figures of the last half minute; None without reports."""
        return self._figures({rank: (each[0] if len(each) > 1 else None) for rank, each in self._recent.items()})

    def total(self) -> Figures | None:
        """The figures since the first report of each rank, by which workers have started; None without reports."""
        several = {rank: len(each) > 1 for rank, each in self._recent.items()}
        return self._figures({rank: self._first[rank] if several[rank] else None for rank in self._recent})

    def _figures(self, since: Mapping[int, Mapping[str, Any] | None]) -> Figures | None:
        """The figures from a report of each rank, or from its begin, to its last one."""
        if not since:
            return None
        last = {rank: self._recent[rank][-1] for rank in since}
        deltas = [_delta(last[rank], first) for rank, first in since.items()]
        counts = [int(each["batches"]) for each in last.values()]
        newest = last.get(0) or next(iter(last.values()))  # rank 0 counts the workers
        workers, postprocess = max(int(newest["workers"]), 1), int(newest.get("postprocess_workers", 0))
        return Figures(
            ranks=int(newest["ranks"]),
            workers=workers,
            batches=sum(counts),
            fewest=min(counts),
            most=max(counts),
            skipped=sum(int(each["skipped"]) for each in last.values()),
            in_flight=sum(int(each["in_flight"]) for each in last.values()),
            batches_per_second=sum(each["batches"] for each in deltas),
            mb_per_second=max(each["bytes"] for each in deltas) / 1e6,
            ranks_wait=min(1.0, sum(each["waited"] for each in deltas) / len(deltas)),
            workers_wait=_waiting(deltas, "preparing", workers),
            source=str(newest["source"]) if newest.get("source") else None,
            postprocess_workers=postprocess,
            postprocess_wait=_waiting(deltas, "postprocessing", postprocess) if postprocess else 0.0,
        )


def _delta(last: Mapping[str, Any], first: Mapping[str, Any] | None) -> dict[str, float]:
    """What a rank counted in each second between two reports."""
    seconds = last["seconds"] - (first["seconds"] if first else 0.0)
    keys = ("batches", "bytes", "waited", "preparing", "postprocessing")
    counts = {key: last.get(key, 0) - (first.get(key, 0) if first else 0) for key in keys}
    return {key: count / seconds if seconds > 0 else 0.0 for key, count in counts.items()}


def _waiting(deltas: Sequence[Mapping[str, float]], key: str, workers: int) -> float:
    """The share of their time for which *workers* do nothing; *key* counts the seconds of what they do."""
    return min(1.0, max(0.0, 1 - sum(each[key] for each in deltas) / workers))


def advice(figures: Figures, price: float | None = None) -> str | None:
    """What would help, in one line; None where nothing has to. *price* is dollars per hour of a worker.

    It is about the busiest stage where ranks wait, else about the one that waits the most.
    """
    if not figures.batches_per_second:  # nothing is known of the work yet
        return None
    waiting = figures.ranks_wait
    stages = [("workers", "batches", "", figures.workers, figures.workers_wait, price)]
    if figures.postprocess_workers:
        own = (figures.postprocess_workers, figures.postprocess_wait, None)
        stages.append(("postprocess workers", "results", " for the postprocess", *own))
    choose = min if waiting > HIGH_SHARE else max
    name, output, stage, workers, workers_wait, price = choose(stages, key=lambda each: each[4])
    speed = 1 - min(waiting, _MOST)  # of the ranks, relative to that without waiting
    busy = workers * (1 - workers_wait)
    needed = max(1, math.ceil(busy / speed - 1e-6))
    rate = figures.mb_per_second / speed
    if rate > LOAD_INSIDE and waiting > HIGH_SHARE:
        return (
            f"each rank takes {figures.mb_per_second:.0f} MB/s and would take {rate:.0f} without waiting: above about "
            f"{LOAD_INSIDE:.0f} MB/s loading inside the ranks is the better choice"
        )
    if waiting > HIGH_SHARE and needed > workers:
        more = " or more" if waiting > _MOST else ""
        return f"ranks wait {percent(waiting)} for {output}: {_workers(needed, workers, price, more + stage)}"
    if waiting > HIGH_SHARE:
        return (
            f"ranks wait {percent(waiting)} for {output} and {name} {percent(workers_wait)} for ranks: "
            "more workers would not help; raise stream.prefetch, or make batches smaller"
        )
    if needed < workers and busy < LOW_SHARE * workers:
        return f"{name} wait {percent(workers_wait)} for ranks: {_workers(needed, workers, price, stage)}"
    return None


def _workers(needed: int, workers: int, price: float | None, more: str = "") -> str:
    text = f"{needed} {'worker' if needed == 1 else 'workers'}{more} would do"
    if price is None:
        return text
    return f"{text}, {dollars(abs(needed - workers) * price)}/h {'more' if needed > workers else 'less'}"


def text(figures: Figures) -> str:
    """The figures in one line."""
    postprocess = figures.postprocess_workers
    parts = [
        f"{figures.batches_per_second:.4g} batches/s",
        f"{counted(figures.in_flight, 'chunk')} in flight",
        f"ranks wait {percent(figures.ranks_wait)}",
        f"{counted(figures.workers, 'worker waits', 'workers wait')} {percent(figures.workers_wait)}",
    ]
    if postprocess:
        waiting = counted(postprocess, "postprocess worker waits", "postprocess workers wait")
        parts.append(f"{waiting} {percent(figures.postprocess_wait)}")
    return ", ".join([*parts, f"{figures.skipped} skipped"] if figures.skipped else parts)


def percent(share: float) -> str:
    """A share as text."""
    return f"{share * 100:.0f} %"
