"""The record of a run: created at its submission, and its events, read while they are being written."""

from __future__ import annotations

import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotmpi.agent import record
from spotmpi.agent.files import exists, is_folder, write_atomically
from spotmpi.agent.outcomes import run_outcome
from spotmpi.agent.plan import COORDINATOR, Member
from spotmpi.core.events import Event, Lines, Stream, read_entry, read_event, read_metric
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader

_CHUNK = 1 << 17  # bytes read from one file at a time
# Seconds between polls: right after an event of a run without output so far, after recent events, and otherwise.
_START_INTERVAL, _SHORT_INTERVAL, _LONG_INTERVAL = 0.005, 0.02, 0.2
# Seconds for which a disk may fail, before that is an error of a follower, and of these without a word.
_PATIENCE, _QUIET = 60.0, 3.0

Sleep = Callable[[float], None]


class _LogLine(NamedTuple):
    """A line of a log; ``row`` is its time (Unix seconds), rank, stream and text."""

    time: float
    number: int
    row: tuple[float, int | None, str, str]


Entry = Event | _LogLine
Read = Callable[[int, str], Entry | None]  # the entry of a line, from its number and text


def create(paths: RunPaths, spec: str, plan: Mapping[str, object], submitted: float, owner: object = None) -> None:
    """Write the record of a run that is submitted or resumed now, by its *owner* if known; *plan* holds no secrets."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    event = {"t": submitted, "event": record.SUBMITTED, "name": plan["name"], "continued": exists(paths.events)}
    event |= {"owner": owner} if owner is not None else {}
    write_atomically(paths.spec, spec)
    write_atomically(paths.plan, json.dumps(plan, indent=1) + "\n")
    paths.summary.unlink(missing_ok=True)
    with paths.events.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def folder_events(
    paths: RunPaths,
    follow: bool,
    alive: Callable[[], bool],
    sleep: Sleep = time.sleep,
    own: Callable[[], Iterable[Event]] = tuple,
) -> Stream:
    """All events of the run in order of time; with *follow*, future ones too, until it ends.

    Events of this follower alone come from *own*. A run whose agent died without recording an end gives a last ``lost``
    event. Memory does not grow with the length of the logs. Partial lines, which a crash leaves, are skipped.

    Raises:
        OSError: the disk fails; with *follow* for a minute.
    """
    return Stream(_pieces(paths, follow, alive, sleep, own))


def _pieces(
    paths: RunPaths, follow: bool, alive: Callable[[], bool], sleep: Sleep, own: Callable[[], Iterable[Event]]
) -> Iterator[Event | Lines]:
    merged, pace = _Merged(paths, follow), _Pace()
    end: Event | None = None  # of the run, until no earlier event can follow
    failing = 0.0  # seconds for which the disk has failed
    while True:
        was_alive = alive()
        yield from own()
        count = 0
        for piece in merged.read():
            count += 1
            pace.see(piece)
            if end and isinstance(piece, Event) and (piece.terminal or piece.kind == record.SUBMITTED):
                yield end  # which another attempt follows
                end = None
            if isinstance(piece, Event) and piece.terminal:
                end = piece
            else:
                yield piece
        if error := merged.failure():
            if failing >= _PATIENCE:
                raise error
            if failing < _QUIET <= failing + _LONG_INTERVAL:
                reason = f"{paths.folder} cannot be read: {error.strerror} (gives up after {_PATIENCE:g} s)"
                yield Event(time.time(), record.WAITING, values={"reason": reason})
            sleep(_LONG_INTERVAL)
            failing += _LONG_INTERVAL
            continue
        failing = 0.0
        if merged.pending():
            continue
        if end or not follow:
            if end:
                yield end
            return
        if not count and run_outcome(writer_alive=was_alive) == record.LOST:
            remedy = f"; continue with `spotmpi run --resume {paths.id}`" if exists(paths.events) else ""
            yield Event(time.time(), record.LOST, values={"reason": reader.lost_reason(paths) + remedy})
            return
        sleep(pace.interval())


class _Pace:
    """How long to wait between looks at the files of a run, which depends on the events that came."""

    def __init__(self) -> None:
        self._output = False  # whether there was any
        self._quiet = 0.0  # seconds since the last event

    def see(self, piece: Event | Lines) -> None:
        """Take account of an event, or of lines."""
        self._output = self._output or isinstance(piece, Lines)
        self._quiet = 0.0

    def interval(self) -> float:
        """Seconds until the next look."""
        short = _SHORT_INTERVAL if self._output or self._quiet >= 0.1 else _START_INTERVAL
        interval = _LONG_INTERVAL if self._quiet >= 1.0 else short
        self._quiet += interval
        return interval


class _Merged:
    """All growing files of a run folder as one stream.

    The writer of a folder writes entries one after the other: once an entry of some time has been read, reading every
    file again gives all older ones. So only entries up to the newest one of the previous read are released. Without
    *follow* it is the folder as it was when the files were first opened.
    """

    def __init__(self, paths: RunPaths, follow: bool) -> None:
        self._paths = paths
        self._follow = follow
        self._tails = [_Tail(paths.events, _event, follow), _Tail(paths.metrics, _metric, follow)]
        self._known: set[Path] = set()
        self._newest = 0  # the last attempt with logs
        self._failure: OSError | None = None  # of the last look for logs

    def pending(self) -> bool:
        """Whether entries have been read that are not released yet."""
        return any(tail.entries for tail in self._tails)

    def failure(self) -> OSError | None:
        """The error of a disk by which the last read may lack something that is there."""
        return next((tail.failure for tail in self._tails if tail.failure), self._failure)

    def read(self) -> Iterator[Event | Lines]:
        """The entries that can be released now, in order of time."""
        horizon = max((tail.entries[-1].time for tail in self._tails if tail.entries), default=float("-inf"))
        newest = self._newest
        self._find_logs()
        self._tails = [each for each in self._tails if each.fill() or each.failure or not each.is_before(newest)]
        tails = self._tails
        if self.failure():
            return  # what could not be read may be older than all the rest
        heap = [(tail.entries[0].time, index) for index, tail in enumerate(tails) if tail.entries]
        heapq.heapify(heap)
        while heap and (heap[0][0] <= horizon or not self._follow):
            _, index = heapq.heappop(heap)
            following = heap[0] if heap else (float("inf"), 0)
            yield tails[index].take(index, following, horizon if self._follow else float("inf"))
            if tails[index].entries or tails[index].fill():
                heapq.heappush(heap, (tails[index].entries[0].time, index))

    def _find_logs(self) -> None:
        """Open new log files; those of attempts before the newest one are complete."""
        self._failure = None
        try:
            found = log_files(self._paths, self._newest)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._follow:
                raise
            self._failure = error
            return
        for attempt, member, path in found:
            if path not in self._known:
                self._known.add(path)
                self._tails.append(_log_tail(path, attempt, member, self._follow))
            self._newest = max(self._newest, attempt)


def log_files(paths: RunPaths, first: int = 0) -> list[tuple[int, Member, Path]]:
    """The logs from attempt number *first* on: attempt, member and path; of others that a download may have, none."""
    folders = [(number, paths.logs / str(number)) for number in record.numbers(str(paths.logs)) if number >= first]
    # Not `glob`, which leaves out silently what a disk does not give, from Python 3.13 on.
    files = [(number, path) for number, folder in folders if is_folder(folder) for path in sorted(folder.iterdir())]
    return [(number, member, path) for number, path in files if (member := record.log_member(path.name))]


class _Tail:
    """The entries of one growing file, read in chunks; without *grows* only up to its first size.

    *source* is the attempt and the member of a log.
    """

    def __init__(self, path: Path, read: Read, grows: bool, source: tuple[int, Member] | None = None) -> None:
        self.entries: deque[Entry] = deque()
        self.failure: OSError | None = None  # of the last read of a file that grows
        self._source = source
        self._path = path
        self._read = read
        self._offset = 0
        self._number = 0
        self._limit = None if grows else _size(path)

    def is_before(self, attempt: int) -> bool:
        """Whether it is the log of an attempt before this one."""
        return self._source is not None and self._source[0] < attempt

    def take(self, index: int, following: tuple[float, int], horizon: float) -> Event | Lines:
        """The first entry; of a log with all lines after it up to the *horizon* that come before the *following* entry.

        An entry's place is its time, then the *index* of its file.
        """
        first = self.entries.popleft()
        if isinstance(first, Event):
            return first
        assert self._source is not None
        rows, number = [first.row], first.number
        while self.entries and (self.entries[0].time, index) < following and self.entries[0].time <= horizon:
            entry = self.entries[0]
            if isinstance(entry, Event) or entry.number != number + 1:  # the copy lacks lines
                break
            rows.append(entry.row)
            number += 1
            self.entries.popleft()
        times, ranks, streams, texts = zip(*rows, strict=True)
        return Lines(*self._source, first.number, times, ranks, streams, texts)

    def fill(self) -> bool:
        """Read until there are entries or the file ends; whether there are any."""
        self.failure = None
        while not self.entries:
            lines = self._lines()
            if not lines:
                return False
            for line in lines:
                self._number += 1
                entry = self._read(self._number, line.decode("utf-8", "replace"))
                if entry:
                    self.entries.append(entry)
        return True

    def _lines(self) -> list[bytes]:
        """The next whole lines, about a chunk of them."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(self._chunk())
                while data and b"\n" not in data:
                    rest = file.read(_CHUNK)
                    if not rest:
                        return []
                    data += rest
        except FileNotFoundError:
            return []
        except OSError as error:
            if self._limit is not None:
                raise
            self.failure = error  # the next read may succeed
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.split(b"\n")[:-1]

    def _chunk(self) -> int:
        return _CHUNK if self._limit is None else max(min(_CHUNK, self._limit - self._offset), 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _log_tail(path: Path, attempt: int, member: Member, grows: bool) -> _Tail:
    last = 0.0  # a partial line has no time of its own
    skipped = 0  # lines that the copy lacks, besides those that stand for them

    def read(number: int, text: str) -> _LogLine:
        nonlocal last, skipped
        missing = record.missing_lines(text)
        skipped += max(missing - 1, 0)
        row = record.read_log_line(text, last)
        last = row[0]
        if missing:
            which = "this line is" if missing == 1 else f"{missing} lines are"
            row = (last, row[1], "e", f"({which} no longer available)")
        return _LogLine(last, number + skipped, row)

    return _Tail(path, read, grows, (attempt, member))


def _event(number: int, text: str) -> Event | None:
    return read_event(read_entry(text))


def _metric(number: int, text: str) -> Event | None:
    values = read_entry(text)
    return None if values is None else read_metric({"attempt": 0, "member": COORDINATOR.text, **values})
