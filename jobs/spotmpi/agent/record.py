"""The record of a run: the only writer of ``runs/<id>/`` while the run is active.

Every line reaches its file by one write, so a reader finds an incomplete one only at the very end of a file
that is being written, and waits for its newline.

    events.jsonl              {"t": 1789.1, "event": "started", "attempt": 1, ...}
    metrics.jsonl             {"t": 1789.2, "uptime": 52.1, "attempt": 1, "member": "node/0", "kind": "metric", ...}
    logs/<attempt>/<role>-<k>.log   "2026-11-21T07:52:01.123456Z 0 o text": arrival time, rank or -, o/e, the line.
                              The n-th line of a file is number n of that attempt and member. In a follower's copy
                              "... - m 12" stands for 12 lines that it could not get.
    attempts/<n>/node-<k>.json    how attempt n ended on node k (`schema.AttemptRecord`)
    summary.json              how the run ended
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .clock import CLOCK, Clock
from .files import read_text, write_atomically
from .launcher_output import Line
from .plan import Member, read_member
from .schema import AttemptRecord, Summary, read_object

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
RECOGNIZED = "recognized"  # the form in which the program prints its progress, or `PATTERN`, with a line
PATTERN = "metrics.pattern"
JOINED = "joined"  # a pool's worker, or a pod that stands by, with its machine
LEFT = "left"  # and that it has gone
PROMOTED = "promoted"  # a pod that stood by does the work of a node now
AVOIDED = "avoided"  # a machine that is at fault, on which the run is not to go on, and why
PLACED = "placed"  # the node group on which the nodes of the gang are asked for
GAP = "gap"  # only in followers: how many lines they missed, in ``size``
MISSING = "m"  # in place of a stream: the text is a number of lines, see `missing_lines`
TERMINAL = (SUCCEEDED, FAILED, STOPPED)
SUBMISSION = "submission"  # in an end on a cluster: the time of the submission that has ended, which names it
LOST = "lost"  # never recorded: the run has no end, and nobody is left to record one

_LOG_NAME = re.compile(r"([a-z]+)-([0-9]+)\.log")
_MAX_OPEN = 32  # files; a process may have 1,024, or 256 on macOS, and a follower needs connections as well
_STALE = (errno.ESTALE, errno.EIO)  # of a network file system, for a moment

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

PLAN = "plan.yaml"
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
_LOGS = "logs/"
SUMMARY = "summary.json"
PLACEMENT = "placement.json"  # where the gang is placed, by the controller of a run with a deadline
LOCK = ".lock"  # of the run folder; whoever writes the record holds it

_SUBMISSIONS = ".submissions"  # the number of the first attempt of each
_ADDRESS = ".node-0"  # the address of node 0's agent, which its name in DNS leads to only seconds later
_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024
_MAX_ADDRESS = 64  # characters, of IPv6 with its zone


class Record:
    """Writes a run folder; opened once per agent.

    *before* is a number below those of its attempts, for a folder that knows of none. It creates a small reserve file
    first, and removes it when the disk is full, so that the end of the run can still be written.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = CLOCK, before: int = 0) -> None:
        self.folder = folder
        self.clock = clock
        self.before = before
        self._open: dict[str, int] = {}
        self._batched: dict[str, list[str]] | None = None  # batched text, by file
        self._in_order = False
        self._second = (0, "")  # the newest second that was written, in Unix time and as text
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(os.path.join(self.folder, _RESERVE), flags, 0o644), "wb") as file:
                file.write(os.urandom(_RESERVE_BYTES))
        except OSError:
            self.release_reserve()  # an incomplete one would take the room that the end of the run needs
            raise

    def event(self, event: str, **values: Any) -> None:
        """Append one event; *values* are JSON types, those that are None are left out."""
        values = {key: value for key, value in values.items() if value is not None}
        self._append(EVENTS, json.dumps({"t": self.clock(), "event": event, **values}) + "\n")

    def metric(self, attempt: int, member: Member, kind: str, values: dict[str, Any], ago: float = 0.0) -> None:
        """Append what the program reported in a line that arrived *ago* seconds before, with its arrival time."""
        # A program may name its scalars as it likes: our keys win.
        line = {**values, **self._arrival(ago), "attempt": attempt, "member": member.text, "kind": kind}
        self._append(METRICS, json.dumps(line) + "\n")

    def _arrival(self, ago: float) -> dict[str, float]:
        """When a metric arrived: Unix time for people, and what a `Clock` has besides to compute rates with."""
        uptime = {"uptime": self.clock.uptime() - ago} if isinstance(self.clock, Clock) else {}
        return {"t": self.clock() - ago, **uptime}

    def line(self, attempt: int, member: Member, line: Line) -> None:
        """Append one line of output."""
        self.lines(attempt, member, [(self.clock(), *line)])

    def lines(self, attempt: int, member: Member, lines: Iterable[tuple[float, int | None, str, str]]) -> None:
        """Append lines of output: each its time, rank, stream and text."""
        stamp = self._stamp
        texts = [
            "%s %s %s %s\n" % (stamp(moment), "-" if rank is None else rank, stream, text)
            for moment, rank, stream, text in lines
        ]
        self._append(_LOGS + "%d/%s.log" % (attempt, member.file), "".join(texts))

    @contextlib.contextmanager
    def batch(self, in_order: bool = False) -> Iterator[None]:
        """Lines, metrics and events that are appended meanwhile reach each file by one write, at the end.

        *in_order*: the files get them in the order of all, so that none is there before an older one of another file.
        """
        self._batched, self._in_order = {}, in_order
        try:
            yield
        finally:
            self._write_batch()

    def _write_batch(self) -> None:
        """Write what is batched, and end the batch."""
        batched, self._batched = self._batched or {}, None
        for name, texts in batched.items():
            self._append(name, "".join(texts))

    def claim_attempt(self) -> int:
        """The number of a new attempt, taken by exclusive create: the highest recorded one plus 1."""
        self.close_logs()
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(self.folder, "attempts"))
        while True:
            number = self.next_attempt()
            try:
                os.mkdir(os.path.join(self.folder, "attempts", str(number)))
            except FileExistsError:
                continue
            return number

    def close_logs(self) -> None:
        """Close the logs of attempts that have ended."""
        for name in [name for name in self._open if name.startswith(_LOGS)]:
            self._close(name)

    def next_attempt(self) -> int:
        """The number that the next attempt would take."""
        return 1 + max(numbers(os.path.join(self.folder, "attempts")), default=self.before)

    def attempt(self, number: int, node: int, values: AttemptRecord) -> None:
        """Write how attempt *number* ended on *node*."""
        self.write_json(os.path.join("attempts", str(number), "node-%d.json" % node), values)

    def summary(self, values: Summary) -> None:
        """Write how the run ended."""
        self.write_json(SUMMARY, values)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write the JSON file *name*, whole or not at all."""
        self.write_text(name, json.dumps(values, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write the file *name*, whole or not at all."""
        write_atomically(self._path(name), text)

    def check_fence(self) -> None:
        """Raise where another agent has begun a newer attempt; here one agent holds the run's lock."""

    def release_reserve(self) -> None:
        """Make room on a full disk for the end of the record."""
        release_reserve(self.folder)

    def close(self) -> None:
        """Close all files and remove the reserve."""
        self._close_files()
        self.release_reserve()

    def _close_files(self) -> None:
        for name in list(self._open):
            self._close(name)

    def _stamp(self, moment: float) -> str:
        """A time as logs have it; each second is formatted once."""
        microseconds = round(moment * 1e6)
        second = microseconds // 1000000
        if second != self._second[0]:
            from datetime import datetime, timezone  # for the first line, while the launchers start

            self._second = second, datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        return "%s.%06dZ" % (self._second[1], microseconds % 1000000)

    def _append(self, name: str, text: str) -> None:
        """Append to a file of the record, once more where a handle is stale; OSError names the file."""
        if self._batched is not None:
            if self._in_order and self._batched and name not in self._batched:
                self._write_batch()
                self._batched = {}
            self._batched.setdefault(name, []).append(text)
            return
        data, has_handle = text.encode("utf-8", "replace"), name in self._open
        try:
            try:
                self._write(name, data)
            except OSError as error:
                if error.errno not in _STALE or not has_handle:
                    raise
                self._write(name, data)  # the file is opened again, which gets a new handle of the server
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(self.folder, name)) from error

    def _write(self, name: str, data: bytes) -> None:
        """Append *data* whole or not at all; after an error the file is opened again."""
        descriptor = self._descriptor(name)
        try:
            before = os.fstat(descriptor).st_size
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        except OSError:
            self._close(name)
            raise

    def _descriptor(self, name: str) -> int:
        """The open file *name*; of many, as the logs of many nodes are, those that were written last stay open."""
        descriptor = self._open.pop(name, None)
        if descriptor is None:
            while len(self._open) >= _MAX_OPEN:
                self._close(next(iter(self._open)))
            path = self._path(name)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o644)
            self._open[name] = descriptor
            # An earlier writer may have left its newline out.
            size = os.fstat(descriptor).st_size
            if size:
                with open(path, "rb") as file:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":
                        os.write(descriptor, b"\n")
        self._open[name] = descriptor  # the last one
        return descriptor

    def _close(self, name: str) -> None:
        with contextlib.suppress(OSError):  # of writes before, which have been reported or repeated
            os.close(self._open.pop(name))

    def _path(self, name: str) -> str:
        """The path of *name*, whose folders are created; not the run folder itself, which may be deleted on purpose."""
        *folders, last = name.split(os.sep)
        path = self.folder
        for folder in folders:
            path = os.path.join(path, folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        return os.path.join(path, last)


def first_attempt(folder: str, submission: str) -> int:
    """The number of the first attempt of *submission*, noted in the run folder by the agent that asks first."""
    noted = _submissions(folder)
    if not isinstance(noted.get(submission), int):
        noted[submission] = 1 + max(numbers(os.path.join(folder, "attempts")), default=0)
        write_atomically(os.path.join(folder, _SUBMISSIONS), json.dumps(noted) + "\n")
    return int(noted[submission])


def recorded_first_attempt(folder: str, submission: str) -> int | None:
    """`first_attempt` where an agent has noted it; otherwise None."""
    noted = _submissions(folder).get(submission)
    return noted if isinstance(noted, int) else None


def _submissions(folder: str) -> dict[str, Any]:
    return read_object(read_text(os.path.join(folder, _SUBMISSIONS)))


def note_address(folder: str, address: str) -> None:
    """Note the address of node 0's agent in the run folder, where it can be written."""
    with contextlib.suppress(OSError):
        write_atomically(os.path.join(folder, _ADDRESS), address + "\n")


def noted_address(folder: str) -> str | None:
    """What `note_address` has noted last; None where nothing can be read."""
    try:
        with open(os.path.join(folder, _ADDRESS), encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_ADDRESS).strip() or None
    except OSError:
        return None


def log_member(name: str) -> Member | None:
    """The member whose output is in a file with this name, in the folder of an attempt; None where it is not a log."""
    match = _LOG_NAME.fullmatch(name)
    try:
        return read_member("/".join(match.groups())) if match else None
    except ValueError:
        return None


def numbers(folder: str) -> list[int]:
    """The attempts that have an entry in *folder*, in order; none where it is missing."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal() and name.isascii())
    except FileNotFoundError:
        return []


def release_reserve(folder: str) -> None:
    """Remove the reserve of a run folder, to make room on a full disk for its last small files."""
    with contextlib.suppress(OSError):
        os.remove(os.path.join(folder, _RESERVE))


def disk_full_reason(error: OSError, folder: str) -> str:
    """The reason of a run that ended because its disk is full."""
    remedy = "raise the limit of the size of files (ulimit -f)" if error.errno == errno.EFBIG else "free some space"
    return "%s: %s; %s, then resume the run" % (error.filename or folder, error.strerror, remedy)


def read_log_line(line: str, before: float) -> tuple[float, int | None, str, str]:
    """The time (Unix seconds), rank, stream and text of a line of a log, without its end.

    A line that a crash left incomplete is text of stdout, at the time of the line *before*.
    """
    from datetime import datetime  # delays no start

    try:
        stamp, rank, stream, text = line.split(" ", 3)
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
        return moment, None if rank == "-" else int(rank), stream, text
    except (ValueError, OverflowError):
        return before, None, "o", line


def missing_lines(line: str) -> int:
    """For how many missing lines a line of a log stands; 0 for a line of output."""
    head, _, count = line.partition(" - %s " % MISSING)
    count = count.rstrip("\n")
    return int(count) if " " not in head and count.isdecimal() and len(count) < 20 else 0
