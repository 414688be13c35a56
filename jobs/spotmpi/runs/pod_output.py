"""What agents print, as entries of the run, and the local copy of a cluster's run, to which followers write them.

The copy is a folder like a local run's.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self, cast

from spotmpi.agent import pod_record, protocol, record
from spotmpi.agent.files import is_folder, lock_file
from spotmpi.agent.plan import COORDINATOR, Member, read_member
from spotmpi.agent.schema import AttemptRecord, Summary
from spotmpi.core.events import Event, Lines, is_count, is_index, is_time, read_event, read_metric
from spotmpi.core.names import RunPaths
from spotmpi.runs.folder import folder_events, log_files

_START = '{"n":'
_LINE = re.compile(r'\{"n":\d{1,19},"l":\[')  # as agents print lines of output


class PodEntry(NamedTuple):
    """A numbered entry that an agent printed: an event, or a record for the run folder.

    Consecutive lines may share one entry; ``number`` is then that of the first line.
    """

    number: int
    event: Event | None = None
    attempt: tuple[int, int, AttemptRecord] | None = None
    summary: Summary | None = None
    lines: Lines | None = None

    @property
    def last(self) -> int:
        """The number of the last line, or of the entry."""
        return self.number if self.lines is None else self.number + self.lines.last - self.lines.number

    @property
    def time(self) -> float | None:
        """The Unix time of the entry, or of its last line; None where it has none."""
        if self.event is not None:
            return self.event.time
        if self.lines is not None:
            return max(self.lines.times)
        values = self.attempt[2] if self.attempt is not None else self.summary
        return None if values is None else values.get("ended")

    def split(self) -> Iterator[PodEntry]:
        """One entry per line; the entry itself if it holds no lines."""
        if self.lines is None:
            yield self
            return
        for number, event in enumerate(self.lines.events(), self.number):
            yield PodEntry(number, event=event)


def parse_all(text: str) -> list[PodEntry | str]:
    """The entries in *text*, which is whole lines; lines that are not entries are returned as strings."""
    lines = text.split("\n")
    entries: list[PodEntry | str] = []
    for are_lines, group in groupby(lines, lambda line: _LINE.match(line) is not None):
        members = list(group)
        block = _read_block(members) if are_lines else None
        entries += [block] if block else [parse(line) or line for line in members]
    if any(isinstance(entry, str) for entry in entries):  # what is not an entry may have come between lines that are
        return [parse(line) or line for line in lines]
    return entries


def _read_block(lines: list[str]) -> PodEntry | None:
    """Consecutive lines of output as one entry, three times as fast as line by line; None where they are not."""
    try:
        objects = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    return _block(objects) if len(objects) == len(lines) and {*map(type, objects)} == {dict} else None


def _block(objects: list[dict[str, Any]]) -> PodEntry | None:
    """Several lines as one entry, if they are consecutive lines of one attempt and member."""
    try:
        columns = zip(*[each[pod_record.LINE] for each in objects], strict=True)
        attempts, members, numbers, times, ranks, streams, texts = columns
        entries = [each[pod_record.NUMBER] for each in objects]
        if len({*attempts}) > 1 or len({*members}) > 1 or not _successive(numbers) or not _successive(entries):
            return None
        lines = Lines(attempts[0], read_member(members[0]), numbers[0], times, ranks, streams, texts)
        return PodEntry(entries[0], lines=lines) if is_count(entries[0]) and _are_lines(lines) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _are_lines(lines: Lines) -> bool:
    """Whether all values have the right types."""
    return (
        is_index(lines.attempt)
        and is_count(lines.number)
        and all(map(is_time, lines.times))
        and all(rank is None or is_count(rank) for rank in lines.ranks)
        and {*lines.streams} <= {"o", "e"}
        and {*map(type, lines.texts)} == {str}
        and not any("\n" in text for text in lines.texts)
    )


def _successive(numbers: Sequence[int]) -> bool:
    return [*numbers] == [*range(numbers[0], numbers[0] + len(numbers))]


def parse(line: str) -> PodEntry | None:
    """The entry in a line; None for other output."""
    if not line.startswith(_START):
        return None
    try:
        return _entry(protocol.read_json(line))
    except ValueError:
        return None


def _entry(values: Any) -> PodEntry | None:
    """The entry that an object of a pod's output stands for; None for what is none, or has no meaning."""
    if not isinstance(values, dict) or not is_count(values.get(pod_record.NUMBER)):
        return None
    number = values[pod_record.NUMBER]
    if pod_record.LINE in values:
        block = _block([values])
        return None if block is None else next(block.split())
    if pod_record.METRIC in values:
        metric = read_metric(values[pod_record.METRIC])
        return None if metric is None else PodEntry(number, event=metric)
    if pod_record.EVENT in values:
        event = read_event(values[pod_record.EVENT])
        return None if event is None else PodEntry(number, event=event)
    if pod_record.ATTEMPT in values:
        return _attempt(number, values[pod_record.ATTEMPT])
    summary = values.get(pod_record.SUMMARY)
    return PodEntry(number, summary=cast(Summary, summary)) if isinstance(summary, dict) and _has_end(summary) else None


def _attempt(number: int, values: Any) -> PodEntry | None:
    if not isinstance(values, list) or len(values) != 3:
        return None
    attempt, node, result = values
    valid = is_index(attempt) and is_index(node) and isinstance(result, dict) and _has_end(result)
    return PodEntry(number, attempt=(attempt, node, result)) if valid else None


def _has_end(values: dict[str, Any]) -> bool:
    return values.get("ended") is None or is_time(values["ended"])


class SeenEvents:
    """Recognises events and lines of a run that come a second time.

    Lines are known by their number, events by kind and by the time that their recorder gave them: a repeated event has
    the same time. Times of different clocks, or of one that was set, do not say which of two events came first; the
    metrics of an attempt are in the order of a clock that nobody sets.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[int, Member], int] = {}
        self._metrics: dict[tuple[int, Member], float] = {}  # when the newest came, by one clock
        self._events: set[tuple[float, str]] = set()  # a few of each attempt
        self._newest = 0.0  # Unix seconds, of events recorded by agents

    def new_in(self, entry: PodEntry) -> Iterator[Event | Lines]:
        """The events and lines of *entry* that are new; from now on they are not."""
        lines = entry.lines
        if lines and lines.number > self._lines.get((lines.attempt, lines.member), 0):
            self._lines[lines.attempt, lines.member] = lines.last
            yield lines
            return
        for each in entry.split():
            if each.event and self.is_new(each.event) and not self._is_past(each):
                yield each.event

    def _is_past(self, entry: PodEntry) -> bool:
        """Whether *entry* is an agent's wait that is over, since later events have been seen."""
        event = entry.event
        printed = event is not None and event.kind == record.WAITING and entry.number > 0
        return event is not None and printed and event.time < self._newest

    def is_new(self, event: Event) -> bool:
        """Whether *event* is new; from now on it is not. Events that only followers see are always new."""
        if event.kind in (record.WAITING, record.GAP):
            return True
        where = (event.attempt, event.member or COORDINATOR)
        if event.kind == record.LINE:
            new = event.number > self._lines.get(where, 0)
            self._lines[where] = max(event.number, self._lines.get(where, 0))
            return new
        if event.kind == record.METRIC:
            recorded = event.values.get("uptime")
            moment = float(recorded) if isinstance(recorded, int | float) else event.time  # which old agents left out
            new = moment > self._metrics.get(where, -math.inf)
            self._metrics[where] = max(moment, self._metrics.get(where, -math.inf))
            return new
        new = (event.time, event.kind) not in self._events
        self._events.add((event.time, event.kind))
        if event.kind != record.SUBMITTED:
            self._newest = max(event.time, self._newest)
        return new


class RunCache:
    """A run's copy: what it holds, and what is new, which is written to it unless another process does that now."""

    def __init__(self, paths: RunPaths) -> None:
        self.recorded = self._read()  # all that the copy holds; whoever writes before reading it does not get it
        self._paths = paths
        self._lock: IO[str] | None = None
        self._record: record.Record | None = None
        self._seen = SeenEvents()
        self._moment = 0.0
        self._lines: dict[tuple[int, Member], int] = {}

    def __enter__(self) -> Self:
        if is_folder(self._paths.folder):
            self._lock = (self._paths.folder / record.LOCK).open("a", encoding="utf-8")
            try:
                lock_file(self._lock)
            except BlockingIOError:
                return self
            self._lines = {(attempt, member): _count(path) for attempt, member, path in log_files(self._paths)}
            self._record = record.Record(str(self._paths.folder), clock=lambda: self._moment)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._record:
            self._record.close()
        if self._lock:
            self._lock.close()

    def _read(self) -> Iterator[Event | Lines]:
        for piece in folder_events(self._paths, follow=False, alive=lambda: True).pieces:
            entry = PodEntry(0, lines=piece) if isinstance(piece, Lines) else PodEntry(0, event=piece)
            yield from self._seen.new_in(entry)

    def write(self, entries: Iterable[PodEntry]) -> list[Event | Lines]:
        """The events and lines of *entries* that are new; the copy has them afterwards, and all records of attempts."""
        deque(self.recorded, maxlen=0)
        new: list[Event | Lines] = []
        with self._record.batch() if self._record else nullcontext():
            for entry in entries:
                for piece in self._seen.new_in(entry):
                    new.append(piece)
                    if self._record:
                        self._write(piece, self._record)
                if self._record and entry.summary is not None:
                    self._record.summary(entry.summary)
                if self._record and entry.attempt is not None:
                    self._record.attempt(*entry.attempt)
        return new

    def _write(self, piece: Event | Lines, writer: record.Record) -> None:
        if isinstance(piece, Lines):
            self._write_lines(piece, writer)
            return
        self._moment, values, member = piece.time, piece.values, piece.member or COORDINATOR
        if piece.kind == record.LINE:
            rows = ([piece.time], [values["rank"]], [values["stream"]], [values["text"]])
            self._write_lines(Lines(piece.attempt, member, piece.number, *rows), writer)
        elif piece.kind == record.METRIC:
            reported = {key: value for key, value in values.items() if key != "kind"}
            writer.metric(piece.attempt, member, values["kind"], reported)
        elif piece.kind not in (record.WAITING, record.GAP):
            writer.event(piece.kind, attempt=piece.attempt or None, **values)

    def _write_lines(self, lines: Lines, writer: record.Record) -> None:
        """Write lines at their numbers, after how many lines are missing before them: they may be any number."""
        where = (lines.attempt, lines.member)
        last = self._lines.get(where, 0)
        rows = [*zip(lines.times, lines.ranks, lines.streams, lines.texts, strict=True)]
        missing = lines.number - last - 1
        before = [(lines.times[0], None, record.MISSING, str(missing))] if missing > 0 else []
        writer.lines(*where, [*before, *rows[max(-missing, 0) :]])
        self._lines[where] = max(lines.last, last)


def _count(path: Path) -> int:
    """The number of the last line."""
    with path.open("rb") as file:
        return sum(record.missing_lines(line.decode("utf-8", "replace")) or 1 for line in file)
