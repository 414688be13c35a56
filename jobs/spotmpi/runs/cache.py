"""A terminal's copy of a run that goes on elsewhere: the same folder as a local run's, filled while following."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from spotmpi.runs.pod_output import Entry
from spotmpi.runs.folder import folder_records
from spotmpi.core.events import Event, Lines
from spotmpi.core.names import RunPaths
from spotmpi.agent import record
from spotmpi.agent.lines import Line
from spotmpi.agent.supervisor import LOCK

MISSING = "(this line could no longer be had)"


class Given:
    """What of a run somebody has been given.

    Lines are known by their number, events by kind and time, which whoever recorded them has given them: an event that
    comes again comes with the same. Which of two happened first, times of different clocks do not tell.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], int] = {}
        self._metrics: dict[tuple[int, int], float] = {}  # the time of the newest of each attempt and node: one clock
        self._events: set[tuple[float, str]] = set()  # a few of each attempt
        self._newest = 0.0  # Unix seconds, of what agents have told

    def fresh(self, entry: Entry) -> Iterator[Event | Lines]:
        """What of *entry* has not been given before; from now on it has."""
        lines = entry.lines
        if lines and lines.number > self._lines.get((lines.attempt, lines.node), 0):
            self._lines[lines.attempt, lines.node] = lines.last
            yield lines
            return
        for each in entry.apart():
            if each.event and self.is_new(each.event) and not self._is_past(each):
                yield each.event

    def _is_past(self, entry: Entry) -> bool:
        """Whether *entry* is what an agent once waited for, and more has happened since that has been given."""
        event = entry.event
        printed = event is not None and event.kind == record.WAITING and entry.number > 0
        return event is not None and printed and event.time < self._newest

    def is_new(self, event: Event) -> bool:
        """Whether *event* has not been given before; from now on it has. What only followers see is always new."""
        if event.kind in (record.WAITING, record.GAP):
            return True
        where = (event.attempt, event.node)
        if event.kind == record.LINE:
            new = event.number > self._lines.get(where, 0)
            self._lines[where] = max(event.number, self._lines.get(where, 0))
            return new
        if event.kind == record.METRIC:
            new = event.time > self._metrics.get(where, 0.0)
            self._metrics[where] = max(event.time, self._metrics.get(where, 0.0))
            return new
        new = (event.time, event.kind) not in self._events
        self._events.add((event.time, event.kind))
        if event.kind != record.SUBMITTED:
            self._newest = max(event.time, self._newest)
        return new


class RunCache:
    """Writes what is new to a run's copy; where another process is writing it already, does nothing."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._lock: IO[str] | None = None
        self._record: record.Record | None = None
        self._given = Given()
        self._moment = 0.0
        self._lines: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        if self._paths.folder.is_dir():
            self._lock = (self._paths.folder / LOCK).open("a")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return self
            for event in folder_records(self._paths):
                self._given.is_new(event)
            self._lines = {where: _count(path) for where, path in _log_files(self._paths)}
            self._record = record.Record(str(self._paths.folder), clock=lambda: self._moment)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._record:
            self._record.close()
        if self._lock:
            self._lock.close()

    def take(self, entries: Iterable[Entry]) -> None:
        """Write what of *entries* is not there already."""
        if self._record is None:
            return
        with self._record.together():
            for entry in entries:
                self._take_one(entry, self._record)

    def _take_one(self, entry: Entry, kept: record.Record) -> None:
        if entry.summary is not None:
            kept.summary(entry.summary)
        elif entry.attempt is not None:
            kept.attempt(*entry.attempt)
        elif entry.lines is not None:
            self._take_lines(entry, entry.lines, kept)
        elif entry.event is not None:
            self._take_event(entry.event, kept)

    def _take_lines(self, entry: Entry, lines: Lines, kept: record.Record) -> None:
        where = (lines.attempt, lines.node)
        if lines.number == self._lines.get(where, 0) + 1:
            kept.lines(*where, zip(lines.times, lines.ranks, lines.streams, lines.texts, strict=True))
            self._lines[where] = lines.last
            return
        for each in entry.apart():
            self._take_one(each, kept)

    def _take_event(self, event: Event, kept: record.Record) -> None:
        self._moment = event.time
        if event.kind == record.LINE:
            self._take_line(event, kept)
        elif event.kind == record.METRIC:
            if self._given.is_new(event):
                values = {key: value for key, value in event.values.items() if key != "kind"}
                kept.metric(event.attempt, event.node, event.values["kind"], values)
        elif event.kind not in (record.WAITING, record.GAP) and self._given.is_new(event):
            kept.event(event.kind, attempt=event.attempt or None, **event.values)

    def _take_line(self, event: Event, kept: record.Record) -> None:
        """Write a line at its number; what could not be had before it is told in its place."""
        where = (event.attempt, event.node)
        if event.number <= self._lines.get(where, 0):
            return
        for _ in range(self._lines.get(where, 0) + 1, event.number):
            kept.line(event.attempt, event.node, Line(None, "e", MISSING))
        self._lines[where] = event.number
        line = Line(event.values["rank"], event.values["stream"], event.values["text"])
        kept.line(event.attempt, event.node, line)


def create(paths: RunPaths, spec: str, plan: dict[str, Any], submitted: float) -> None:
    """Lay down the copy of a run that was just submitted, or continued; what is secret is no part of *plan*."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    paths.spec.write_text(spec)
    paths.plan.write_text(json.dumps(plan, indent=1) + "\n")
    paths.summary.unlink(missing_ok=True)
    continued = paths.events.exists()
    event = {"t": submitted, "event": record.SUBMITTED, "name": plan["name"], "continued": continued}
    event |= {"owner": plan["owner"]} if "owner" in plan else {}
    with paths.events.open("a") as file:
        file.write(json.dumps(event) + "\n")


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _log_files(paths: RunPaths) -> list[tuple[tuple[int, int], Path]]:
    files = paths.logs.glob("*/node-*.log")
    return [((int(path.parent.name), int(path.stem.removeprefix("node-"))), path) for path in files]
