"""What the records of a training's iterations say about each fault and about the result. Pure, but for the reader."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.testbed.faults import Fault


@dataclass(frozen=True)
class Record:
    """An iteration that a rank has done: when, in which attempt and process, and with which samples in its update."""

    time: float
    iteration: int
    parameters: str
    attempt: str
    rank: int
    host: str
    pid: int
    samples: tuple[int, ...]


class Reader:
    """The records of a folder, read as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.records: list[Record] = []
        self.furthest = 0  # the highest iteration that was done

    def update(self) -> None:
        """Read what has come since, by time; a line that is not complete is left for the next time."""
        came: list[Record] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            read = self._read.get(path, 0)
            if path.stat().st_size == read:
                continue
            with path.open("rb") as file:
                file.seek(read)
                lines = file.read()
            complete = lines[: lines.rfind(b"\n") + 1]
            self._read[path] = read + len(complete)
            came += [record_of(json.loads(line)) for line in complete.splitlines()]
        self.records += sorted(came, key=lambda record: record.time)
        self.furthest = max([self.furthest, *(record.iteration for record in came)])


def record_of(values: dict[str, Any]) -> Record:
    """A record from a line of the training program."""
    return Record(**{**values, "samples": tuple(values["samples"])})


@dataclass(frozen=True)
class Injected:
    """A fault at the time when it was injected."""

    fault: Fault
    time: float


@dataclass
class Recovery:
    """What a fault cost: seconds without a new iteration, and iterations that were trained again.

    Without *seconds* it was not recovered from in time, for this reason.
    """

    kind: str
    rank: int
    seconds: float | None
    repeated: int = 0
    reason: str = ""


@dataclass
class Turn:
    """What a side came to in one of its turns, or why it ended before its time."""

    side: str
    recoveries: list[Recovery] = field(default_factory=list)
    lost: int | None = None
    doubled: int | None = None
    iteration: int = 0
    parameters: str = ""
    equal: bool | None = None
    attempts: int = 0
    seconds: float = 0.0
    load: float = 0.0
    failure: str = ""


def frontier(records: Iterable[Record]) -> list[tuple[float, int]]:
    """When each iteration was done for the first time, as far as training had come: times and iterations that grow."""
    found: list[tuple[float, int]] = []
    for record in sorted(records, key=lambda record: record.time):
        if not found or record.iteration > found[-1][1]:
            found.append((record.time, record.iteration))
    return found


def recovered(records: Sequence[Record], injected: Injected) -> bool:
    """Whether a process that began after the fault has done an iteration that none had done before it."""
    before = {record.attempt for record in records if record.time <= injected.time}
    new = [record for record in records if record.attempt not in before]
    if not new:
        return False
    first = min(record.time for record in new)
    furthest = max((record.iteration for record in records if record.time < first), default=0)
    return any(record.iteration > furthest for record in new)


def recoveries(records: Sequence[Record], injected: Sequence[Injected]) -> list[Recovery]:
    """What each fault cost: the longest time without a new iteration until the next fault, and what was repeated."""
    steps = frontier(records)
    ends = [*(each.time for each in injected[1:]), float("inf")]
    found = []
    for each, end in zip(injected, ends, strict=False):
        gaps = [after - before for (before, _), (after, _) in pairwise(steps) if each.time < after <= end]
        own = [record for record in records if each.time < record.time <= end]
        seconds = max(gaps) if gaps and recovered([r for r in records if r.time <= end], each) else None
        found.append(Recovery(each.fault.kind, each.fault.node, seconds, _repeated(records, own)))
    return found


def _repeated(records: Sequence[Record], own: Sequence[Record]) -> int:
    """How many of these iterations a rank had done before, by the rank that had to repeat most."""
    counts = [0]
    for rank in {record.rank for record in own}:
        of_rank = [record for record in records if record.rank == rank]
        first: dict[int, float] = {}
        for record in of_rank:
            first[record.iteration] = min(record.time, first.get(record.iteration, record.time))
        counts.append(sum(record.rank == rank and record.time > first[record.iteration] for record in own))
    return max(counts)


def effective(records: Iterable[Record]) -> dict[int, Record]:
    """The record of each iteration that counts: an iteration that was trained again replaces what was before."""
    return {record.iteration: record for record in sorted(records, key=lambda record: record.time)}


def check(turn: Turn, records: Iterable[Record], undisturbed: dict[int, Record]) -> None:
    """Compare samples and parameters of a turn with those of the undisturbed run up to the same iteration."""
    own = {iteration: each for iteration, each in effective(records).items() if iteration <= turn.iteration}
    if not turn.iteration or turn.iteration not in undisturbed:
        return
    expected = Counter(sample for at in range(1, turn.iteration + 1) for sample in undisturbed[at].samples)
    used = Counter(sample for record in own.values() for sample in record.samples)
    turn.lost, turn.doubled = (expected - used).total(), (used - expected).total()
    turn.equal = turn.parameters == undisturbed[turn.iteration].parameters


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, by linear interpolation between the values."""
    ordered = sorted(values)
    at = 0.95 * (len(ordered) - 1)
    low = int(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@dataclass(frozen=True)
class Summary:
    """All turns of a side; *medians* are seconds by kind of fault, *equal* and *ended* count turns."""

    side: str
    injected: int
    recovered: int
    median: float | None
    p95: float | None
    shortest: float | None
    medians: dict[str, float]
    repeated: float | None
    lost: int
    doubled: int
    ended: int
    equal: int
    turns: int
    load: tuple[float, float]
    failures: tuple[str, ...]


def summary(side: str, turns: Sequence[Turn]) -> Summary:
    """What the turns of a side came to."""
    all_recoveries = [each for turn in turns for each in turn.recoveries]
    done = [each for each in all_recoveries if each.seconds is not None]
    seconds = [each.seconds for each in done if each.seconds is not None]
    kinds: dict[str, list[float]] = {}
    for each in done:
        kinds.setdefault(each.kind, []).append(each.seconds or 0.0)
    checked = [turn for turn in turns if turn.equal is not None]
    return Summary(
        side=side,
        injected=len(all_recoveries),
        recovered=len(done),
        median=statistics.median(seconds) if seconds else None,
        p95=p95(seconds) if seconds else None,
        shortest=min(seconds) if seconds else None,
        medians={kind: statistics.median(values) for kind, values in kinds.items()},
        repeated=statistics.mean(each.repeated for each in done) if done else None,
        lost=sum(turn.lost or 0 for turn in checked),
        doubled=sum(turn.doubled or 0 for turn in checked),
        ended=len(checked),
        equal=sum(bool(turn.equal) for turn in checked),
        turns=len(turns),
        load=(min((turn.load for turn in turns), default=0.0), max((turn.load for turn in turns), default=0.0)),
        failures=tuple(
            [each.reason for each in all_recoveries if each.reason] + [turn.failure for turn in turns if turn.failure]
        ),
    )
