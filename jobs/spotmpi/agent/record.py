"""The record of a run: the only writer of ``runs/<id>/`` while the run lives.

Every line reaches its file by one write, so a reader never trips over half of one, save at the very end of a file
that is being written; readers leave a last line without its newline for later.

    events.jsonl              {"t": 1789.1, "event": "started", "attempt": 1, ...}
    metrics.jsonl             {"t": 1789.2, "attempt": 1, "node": 0, "kind": "metric", "iteration": 20, ...}
    logs/<attempt>/node-<k>.log   "2026-11-21T07:52:01.123456Z 0 o text": arrival time, rank or -, o/e, the line.
                              The n-th line of a file is number n of that attempt and node.
    attempts/<n>/node-<k>.json    how attempt n went on node k
    summary.json              how the run ended
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from .lines import Line

SUBMITTED = "submitted"
WAITING = "waiting"
STARTED = "started"
LINE = "line"
METRIC = "metric"
INTERRUPTED = "interrupted"
RESTARTED = "restarted"
SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
GAP = "gap"  # only followers see one: how much they missed, in ``size``
TERMINAL = (SUCCEEDED, FAILED, STOPPED)
LOST = "lost"  # never recorded: the run has no end, and nobody is left to record one

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a full disk says

_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024


class Record:
    """Writes a run folder; opened once per agent.

    A small reserve file is laid down first and given up when the disk is full, so that the end of the run
    can still be written.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.clock = clock
        self._open: dict[str, int] = {}
        self._held: dict[str, list[str]] | None = None  # what is to be written together, by file
        self._second = (0, "")  # the newest second that was written, in Unix time and in words
        self._lay_reserve()

    def event(self, event: str, **values: Any) -> None:
        """Append one event; *values* are JSON types, those that are None are left out."""
        values = {key: value for key, value in values.items() if value is not None}
        self._append("events.jsonl", json.dumps({"t": self.clock(), "event": event, **values}) + "\n")

    def metric(self, attempt: int, node: int, kind: str, values: dict[str, Any]) -> None:
        """Append what the program said in a protocol line, with its arrival time."""
        # What a program calls its scalars is its own business: ours win.
        line = {**values, "t": self.clock(), "attempt": attempt, "node": node, "kind": kind}
        self._append("metrics.jsonl", json.dumps(line) + "\n")

    def line(self, attempt: int, node: int, line: Line) -> None:
        """Append one line of output."""
        self.lines(attempt, node, [(self.clock(), *line)])

    def lines(self, attempt: int, node: int, lines: Iterable[tuple[float, int | None, str, str]]) -> None:
        """Append lines of output: each its time, rank, stream and text."""
        stamp = self._stamp
        texts = [
            "%s %s %s %s\n" % (stamp(moment), "-" if rank is None else rank, stream, text)
            for moment, rank, stream, text in lines
        ]
        self._append("logs/%d/node-%d.log" % (attempt, node), "".join(texts))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Lines, metrics and events that are taken meanwhile reach each file by one write, at the end."""
        self._held = {}
        try:
            yield
        finally:
            held, self._held = self._held, None
            for name, texts in held.items():
                self._append(name, "".join(texts))

    def take_attempt(self) -> int:
        """The number of a new attempt, taken by exclusive create: the highest recorded one plus 1."""
        attempts = os.path.join(self.folder, "attempts")
        with contextlib.suppress(FileExistsError):
            os.mkdir(attempts)
        while True:
            number = 1 + max([int(name) for name in os.listdir(attempts) if name.isdecimal()], default=0)
            try:
                os.mkdir(os.path.join(attempts, str(number)))
            except FileExistsError:
                continue
            return number

    def attempt(self, number: int, node: int, values: dict[str, Any]) -> None:
        """Write how attempt *number* went on *node*."""
        self.replace(os.path.join("attempts", str(number), "node-%d.json" % node), values)

    def summary(self, values: dict[str, Any]) -> None:
        """Write what the run came to."""
        self.replace("summary.json", values)

    def replace(self, name: str, values: dict[str, Any]) -> None:
        """Write the JSON file *name* whole."""
        self.text(name, json.dumps(values, indent=1) + "\n")

    def text(self, name: str, text: str) -> None:
        """Write the file *name* whole: aside first, then renamed."""
        path = self._place(name)
        aside = path + ".part"
        with open(aside, "w") as file:
            file.write(text)
        os.replace(aside, path)

    def give_up_reserve(self) -> None:
        """Make room for last words on a full disk."""
        with contextlib.suppress(OSError):
            os.remove(os.path.join(self.folder, _RESERVE))

    def close(self) -> None:
        """Close all files and remove the reserve."""
        self._close_files()
        self.give_up_reserve()

    def _close_files(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _stamp(self, moment: float) -> str:
        """A moment as logs have it; words for a second are made once."""
        microseconds = round(moment * 1e6)
        second = microseconds // 1000000
        if second != self._second[0]:
            self._second = second, datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        return "%s.%06dZ" % (self._second[1], microseconds % 1000000)

    def _append(self, name: str, text: str) -> None:
        if self._held is not None:
            self._held.setdefault(name, []).append(text)
            return
        descriptor = self._open.get(name)
        if descriptor is None:
            path = self._place(name)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _end_torn_line(path, descriptor)
            self._open[name] = descriptor
        data = text.encode("utf-8", "replace")
        before = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            os.ftruncate(descriptor, before)
            raise OSError(error.errno, error.strerror, os.path.join(self.folder, name)) from error

    def _place(self, name: str) -> str:
        """The path of *name*, whose folders are made; not the run folder itself, for whoever deleted it meant it."""
        *folders, last = name.split(os.sep)
        place = self.folder
        for folder in folders:
            place = os.path.join(place, folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)
        return os.path.join(place, last)

    def _lay_reserve(self) -> None:
        path = os.path.join(self.folder, _RESERVE)
        with open(path, "wb") as file:
            file.write(os.urandom(_RESERVE_BYTES))


def read_log_line(line: str, before: float) -> tuple[float, int | None, str, str]:
    """The time (Unix seconds), rank, stream and text of a line of a log, without its end.

    What a crash has left of one is text of stdout, at the time of the line *before*.
    """
    try:
        stamp, rank, stream, text = line.split(" ", 3)
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
        return moment, None if rank == "-" else int(rank), stream, text
    except (ValueError, OverflowError):
        return before, None, "o", line


def full(error: OSError, folder: str) -> str:
    """The reason of a run that ended for want of space."""
    return "%s: %s; free some space, then --resume" % (error.filename or folder, error.strerror)


def _end_torn_line(path: str, descriptor: int) -> None:
    """End a line that an earlier writer left without its newline."""
    size = os.fstat(descriptor).st_size
    if size:
        with open(path, "rb") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                os.write(descriptor, b"\n")
