"""What an attempt has reported so far: iterations, checkpoints, signs of life."""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

from . import protocol
from .lines import Line

Values = Dict[str, Any]
Said = Tuple[str, Values]


_SEARCHED = 4096  # letters of a line that a pattern is tried on: many take the square of their time


class Progress:
    """Follows the lines of one attempt.

    *pattern* is a regular expression for programs that print their own way; its group ``iteration`` counts.
    """

    def __init__(self, now: float, pattern: str | None = None) -> None:
        self.alive = False  # has said anything
        self.moved = now  # when it last got further
        self.iteration: int | None = None
        self.first_iteration: int | None = None
        self.first_iteration_time: float | None = None  # Unix seconds; whoever has the clock of the record sets it
        self.resumed: int | None = None
        self.checkpoint: int | None = None
        self.notice_checkpoints = 0
        self.context: Values = {}
        self.result: Values = {}
        self.fatal: str | None = None
        self._pattern = re.compile(pattern) if pattern else None

    def heard(self, now: float) -> None:
        """Some output came, be it half a line: a sign of life, and progress as long as no iteration was reported."""
        self.alive = True
        if self.iteration is None:
            self.moved = now

    def take(self, node: int, line: Line, now: float) -> Said | None:
        """The (kind, values) that *line* of *node* reports, or None for plain output; remembers what it means."""
        said = self._read(node, line)
        if said is None:
            return None
        kind, values = said
        getattr(self, "_" + kind, self._ignore)(values, now)
        return said

    def _read(self, node: int, line: Line) -> Said | None:
        if line.stream == "o":
            said = protocol.decode(line.text)
            if said:
                return said
        if self._pattern and not node and not line.rank:
            values = self._matched(self._pattern, line.text[:_SEARCHED])
            # Launchers that do not tell ranks apart let every rank print the same iteration: the first one counts.
            if values and values["iteration"] != self.iteration:
                return protocol.METRIC, values
        return None

    def _matched(self, pattern: re.Pattern[str], text: str) -> Values | None:
        match = pattern.search(text)
        if not match:
            return None
        values = {name: _number(said) for name, said in match.groupdict().items() if said is not None}
        iteration = values.get("iteration")
        said = {**values, "iteration": int(iteration)} if isinstance(iteration, (int, float)) else {}
        return said if protocol.sound(protocol.METRIC, said) else None

    def _metric(self, values: Values, now: float) -> None:
        iteration = values.get("iteration")
        if isinstance(iteration, int) and (self.iteration is None or iteration > self.iteration):
            if self.first_iteration is None:
                self.first_iteration = iteration - max(len(values.get("seconds") or []), 1) + 1
            self.iteration = iteration
            self.moved = now

    def _context(self, values: Values, now: float) -> None:
        self.context = values
        self.moved = now

    def _resumed(self, values: Values, now: float) -> None:
        self.resumed = values.get("iteration")
        self.moved = now

    def _evaluation(self, values: Values, now: float) -> None:
        self.moved = now

    def _checkpoint(self, values: Values, now: float) -> None:
        self.checkpoint = values.get("iteration")
        self.moved = now
        if values.get("reason") == "notice":
            self.notice_checkpoints += 1

    def _result(self, values: Values, now: float) -> None:
        self.result = values
        self.moved = now

    def _fatal(self, values: Values, now: float) -> None:
        reason = values.get("reason")
        known = reason and isinstance(reason, str)
        self.fatal = reason if known else "the program said that starting again cannot help"

    def _ignore(self, values: Values, now: float) -> None:
        """A kind of a newer protocol is recorded, and means nothing here."""


def _number(text: str) -> int | float | str | None:
    """What *text* says; None for what JSON has no number for, such as nan."""
    try:
        return protocol.number(text)
    except ValueError:
        return text
