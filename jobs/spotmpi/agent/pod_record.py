"""The record of a pod, written to the run folder and to stdout as well, so that a follower needs no volume.

Fencing: an agent whose attempt is no longer the newest of its run exits at once, and writes nothing more. A pod that
was deleted by force, or whose node does not answer, may go on in parallel with the pod that replaces it, in the same
run folder. An agent that takes an attempt writes its number to a file there. It is a file, because NFS asks the server
when one is opened (close-to-open consistency, nfs(5)), while the listing of a folder may be a minute old
(``acdirmax``).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import record
from .clock import CLOCK, Clock
from .launcher_output import Line
from .plan import Member
from .schema import AttemptRecord, Summary

# Keys of the objects on stdout: the kind of entry, and its number ``n``, from 1 without a gap in each pod.
EVENT, METRIC, LINE, ATTEMPT, SUMMARY = "e", "m", "l", "a", "s"
NUMBER = "n"

NEWEST = ".attempt"  # the file with the number of the newest attempt
INTERVAL = 1.0  # seconds between checks of it
MAX_AGE = 2.0  # seconds for which a check is valid; an agent that was frozen for longer checks again before it writes


class Fenced(Exception):
    """A newer attempt of the run has begun; the text names it."""


class Fence:
    """Knows whether an attempt of the run in *folder* is newer than *number*."""

    def __init__(self, folder: str, number: int, clock: Clock = CLOCK) -> None:
        self._folder = folder
        self._clock = clock
        self._number = self._newest = number
        self._refreshed = self._clock.uptime()
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Watch from now on.

        A thread of its own does, since a file system that hangs must not keep the agent from receiving messages.
        """
        threading.Thread(target=self._watch, name="fence", daemon=True).start()

    def check(self) -> None:
        """Raise `Fenced` where a newer attempt has been seen."""
        if self._newest > self._number:
            raise Fenced("attempt %d has begun: attempt %d exits without writing" % (self._newest, self._number))

    def check_before_write(self, final: bool) -> None:
        """As `check`, after reading the folder again where the last time is too long ago, and always where *final*.

        Raises:
            OSError: the folder could not be read, and who cannot know whether a newer attempt has begun writes nothing.
        """
        is_old = final or self._clock.uptime() > self._refreshed + MAX_AGE
        error = self.refresh() if is_old else None
        self.check()
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.refresh()

    def refresh(self) -> OSError | None:
        """Read the folder; the error if that failed, after which the last time still counts."""
        failure = None
        for read in (_number_in_file, _highest_number):
            try:
                self._newest = max(self._newest, _repeated(read, self._folder))
            except OSError as error:
                failure = error
        if failure is None:
            self._refreshed = self._clock.uptime()
        return failure


class PodRecord(record.Record):
    """A `Record` that also prints one JSON object per entry.

    The object has the number and ``e``: an event; ``m``: a metric; ``a``: [attempt, node, record]; ``s``: the summary;
    or ``l``: [attempt, member, number, time, rank, stream, text].

    *before* is a number below those of its attempts: without a run volume the folder is empty in a new pod. Once it has
    taken an attempt it writes nothing after a newer one has begun: methods raise `Fenced`.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = CLOCK, before: int = 0) -> None:
        super().__init__(folder, lambda: self._time, before)
        self._now: Callable[[], float] = lambda: round(clock(), 6)  # with the precision of the folder
        self._time = clock()  # of the entry that is being written: the same in the folder and on stdout
        self._uptime = clock.uptime if isinstance(clock, Clock) else None
        self._steady = clock if isinstance(clock, Clock) else CLOCK
        self._lines: dict[tuple[int, Member], int] = {}
        self._printed = 0
        self._unprinted: list[str] = []  # of a batch
        self._fence: Fence | None = None

    def claim_attempt(self) -> int:
        """The number of a new attempt, where no other agent has begun one; earlier ones are fenced off from now on."""
        self._check(final=True)
        number = super().claim_attempt()
        announce_attempt(self.folder, number)
        if self._fence:
            self._fence.stop()
        self._fence = Fence(self.folder, number, self._steady)
        self._fence.watch()
        return number

    def check_fence(self) -> None:
        """Raise `Fenced` where an attempt is known that is newer than the one taken."""
        if self._fence:
            self._fence.check()

    def close(self) -> None:
        """Close all files; where a newer attempt has begun, or may have, the reserve is left to it."""
        try:
            self._check(final=True)
        except (Fenced, OSError):
            self._close_files()
        else:
            super().close()
        if self._fence:
            self._fence.stop()

    def _check(self, final: bool) -> None:
        if self._fence:
            self._fence.check_before_write(final)

    def write_text(self, name: str, text: str) -> None:
        """Write the file *name*, whole or not at all, and not once a newer attempt has begun."""
        self._check(final=True)
        super().write_text(name, text)

    def event(self, event: str, **values: Any) -> None:
        """Append and print one event; it is printed also where the folder cannot be written."""
        self._check(final=True)
        self._time = self._now()
        printed = {key: value for key, value in values.items() if value is not None}
        try:
            super().event(event, **values)
        finally:
            self._print(EVENT, {"t": self._time, "event": event, **printed})

    def metric(self, attempt: int, member: Member, kind: str, values: dict[str, Any], ago: float = 0.0) -> None:
        """Append and print what the program reported."""
        self._check(final=False)
        self._time = self._now()
        if self._uptime:
            values = {**values, "uptime": round(self._uptime() - ago, 6)}
        super().metric(attempt, member, kind, values, ago)
        self._print(METRIC, {**values, "t": self._time - ago, "attempt": attempt, "member": member.text, "kind": kind})

    def line(self, attempt: int, member: Member, line: Line) -> None:
        """Append and print one numbered line of output."""
        self._check(final=False)
        self._time = self._now()
        super().line(attempt, member, line)
        number = self._lines[attempt, member] = self._lines.get((attempt, member), 0) + 1
        self._print(LINE, [attempt, member.text, number, self._time, line.rank, line.stream, line.text])

    def _write_batch(self) -> None:
        """Append to the files, and print the same lines, also where an append fails: they have their numbers."""
        try:
            self._check(final=False)  # another agent may have begun a later attempt since the batch began
            super()._write_batch()
        finally:
            texts, self._unprinted = self._unprinted, []
            sys.stdout.write("".join(texts))
            sys.stdout.flush()

    def attempt(self, number: int, node: int, values: AttemptRecord) -> None:
        """Write and print how an attempt ended."""
        super().attempt(number, node, values)
        self._print(ATTEMPT, [number, node, values])

    def summary(self, values: Summary) -> None:
        """Write and print how the run ended."""
        super().summary(values)
        self._print(SUMMARY, values)

    def _print(self, kind: str, values: Any) -> None:
        self._printed += 1
        text = json.dumps({NUMBER: self._printed, kind: values}, separators=(",", ":")) + "\n"
        if self._batched is not None:
            self._unprinted.append(text)
            return
        sys.stdout.write(text)
        sys.stdout.flush()


def announce_attempt(folder: str, number: int) -> None:
    """Tell earlier agents of the run in *folder* that attempt *number* has begun."""
    # Not renamed into place: readers with an open handle see the new content.
    descriptor = os.open(os.path.join(folder, NEWEST), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, b"%d\n" % number)
    finally:
        os.close(descriptor)


def newest_attempt(folder: str) -> int:
    """The number of the newest attempt of the run in *folder*, as far as can be read."""
    number = 0
    for read in (_number_in_file, _highest_number):
        with contextlib.suppress(OSError):
            number = max(number, read(folder))
    return number


def _repeated(read: Callable[[str], int], folder: str) -> int:
    """What *read* gives, at the second try where the first one fails: a stale handle is replaced by then."""
    try:
        return read(folder)
    except OSError:
        return read(folder)


def _number_in_file(folder: str) -> int:
    """The announced number; 0 where there is none."""
    try:
        with open(os.path.join(folder, NEWEST), encoding="utf-8") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def _highest_number(folder: str) -> int:
    """The highest number that was taken; two agents that took one at once may have announced them in either order."""
    return max(record.numbers(os.path.join(folder, "attempts")), default=0)
