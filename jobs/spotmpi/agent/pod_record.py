"""The record of a pod: what goes to the run folder goes to stdout too, so that a follower needs no volume."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from . import fencing, record
from .lines import Line

# Keys of the objects on stdout: what a line is, beside its number ``n``, from 1 without a gap in each pod.
EVENT, METRIC, LINE, ATTEMPT, SUMMARY = "e", "m", "l", "a", "s"
NUMBER = "n"


class PodRecord(record.Record):
    """A `Record` that also prints one JSON object per entry.

    Beside its number it holds ``e``: an event; ``m``: a metric; ``a``: [attempt, node, record]; ``s``: the summary; or
    ``l``: [attempt, node, number, time, rank, stream, text].

    Once it has taken an attempt it writes nothing beside a newer one: every method then raises `fence.Fenced`.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder, lambda: self._moment)
        self._now: Callable[[], float] = lambda: round(clock(), 6)  # as exactly as the folder keeps it
        self._moment = clock()  # of the entry that is being written: the same in the folder and on stdout
        self._lines: dict[tuple[int, int], int] = {}
        self._printed = 0
        self._fence: fencing.Fence | None = None

    def take_attempt(self) -> int:
        """The number of a new attempt, by which earlier agents of the run are fenced off."""
        number = super().take_attempt()
        fencing.leave_number(self.folder, number)
        self._fence = fencing.Fence(self.folder, number)
        return number

    def check_fence(self) -> None:
        """Raise `fence.Fenced` where an attempt is known that is newer than the one taken."""
        if self._fence:
            self._fence.check()

    def close(self) -> None:
        """Close all files; the reserve stays where it is another agent's."""
        try:
            self._check(final=True)
        except fencing.Fenced:
            self._close_files()
        else:
            super().close()
        if self._fence:
            self._fence.end()

    def _check(self, final: bool) -> None:
        if self._fence:
            self._fence.check_before_write(final)

    def event(self, event: str, **values: Any) -> None:
        """Append and print one event; it is printed also where the folder does not take it."""
        self._check(final=True)
        self._moment = self._now()
        said = {key: value for key, value in values.items() if value is not None}
        try:
            super().event(event, **values)
        finally:
            self._print(EVENT, {"t": self._moment, "event": event, **said})

    def metric(self, attempt: int, node: int, kind: str, values: dict[str, Any]) -> None:
        """Append and print what the program reported."""
        self._check(final=False)
        self._moment = self._now()
        super().metric(attempt, node, kind, values)
        self._print(METRIC, {**values, "t": self._moment, "attempt": attempt, "node": node, "kind": kind})

    def line(self, attempt: int, node: int, line: Line) -> None:
        """Append and print one numbered line of output."""
        self._check(final=False)
        self._moment = self._now()
        super().line(attempt, node, line)
        number = self._lines[attempt, node] = self._lines.get((attempt, node), 0) + 1
        self._print(LINE, [attempt, node, number, self._moment, line.rank, line.stream, line.text])

    def attempt(self, number: int, node: int, values: dict[str, Any]) -> None:
        """Write and print how an attempt went."""
        self._check(final=True)
        super().attempt(number, node, values)
        self._print(ATTEMPT, [number, node, values])

    def summary(self, values: dict[str, Any]) -> None:
        """Write and print what the run came to."""
        self._check(final=True)
        super().summary(values)
        self._print(SUMMARY, values)

    def _print(self, kind: str, values: Any) -> None:
        self._printed += 1
        sys.stdout.write(json.dumps({NUMBER: self._printed, kind: values}, separators=(",", ":")) + "\n")
        sys.stdout.flush()
