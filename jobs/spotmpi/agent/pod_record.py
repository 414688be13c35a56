"""The record of a pod, written to the run folder and to stdout as well, so that a follower needs no volume."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from . import fencing, record
from .clock import CLOCK, Clock
from .launcher_output import Line
from .plan import Member
from .schema import AttemptRecord, Summary

# Keys of the objects on stdout: the kind of entry, and its number ``n``, from 1 without a gap in each pod.
EVENT, METRIC, LINE, ATTEMPT, SUMMARY = "e", "m", "l", "a", "s"
NUMBER = "n"


class PodRecord(record.Record):
    """A `Record` that also prints one JSON object per entry.

    The object has the number and ``e``: an event; ``m``: a metric; ``a``: [attempt, node, record]; ``s``: the summary;
    or ``l``: [attempt, member, number, time, rank, stream, text].

    *before* is a number below those of its attempts: without a run volume the folder is empty in a new pod. Once it has
    taken an attempt it writes nothing after a newer one has begun: methods raise `fencing.Fenced`.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = CLOCK, before: int = 0) -> None:
        super().__init__(folder, lambda: self._time, before)
        self._now: Callable[[], float] = lambda: round(clock(), 6)  # with the precision of the folder
        self._time = clock()  # of the entry that is being written: the same in the folder and on stdout
        self._uptime = clock.uptime if isinstance(clock, Clock) else None
        self._steady = clock if isinstance(clock, Clock) else CLOCK
        self._lines: dict[tuple[int, Member], int] = {}
        self._printed = 0
        self._fence: fencing.Fence | None = None

    def claim_attempt(self) -> int:
        """The number of a new attempt, where no other agent has begun one; earlier ones are fenced off from now on."""
        self._check(final=True)
        number = super().claim_attempt()
        fencing.announce(self.folder, number)
        if self._fence:
            self._fence.stop()
        self._fence = fencing.Fence(self.folder, number, self._steady)
        self._fence.watch()
        return number

    def check_fence(self) -> None:
        """Raise `fencing.Fenced` where an attempt is known that is newer than the one taken."""
        if self._fence:
            self._fence.check()

    def close(self) -> None:
        """Close all files; where a newer attempt has begun, or may have, the reserve is left to it."""
        try:
            self._check(final=True)
        except (fencing.Fenced, OSError):
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
        sys.stdout.write(json.dumps({NUMBER: self._printed, kind: values}, separators=(",", ":")) + "\n")
        sys.stdout.flush()
