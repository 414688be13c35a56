"""What an attempt has reported so far: iterations, checkpoints, other output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Tuple

from . import protocol
from .lines import Line
from .plan import COORDINATOR, Member

if TYPE_CHECKING:  # it is imported while the launchers start
    from .recognition import Metric, Recognizer

Values = Dict[str, Any]
Report = Tuple[str, Values]

_OF_FUNCTIONS = (protocol.STREAM, protocol.CHECKPOINT, protocol.RESUMED)  # which print them within any program
_MAX_ROWS = 300  # characters of the rows of a batch in a reason
_MAX_MATCHED = 4096  # characters of a line that a pattern is tried on: many take quadratic time


class Progress:
    """Follows the lines of one attempt.

    *pattern* is a regular expression for programs that print in a format of their own; it needs a group ``iteration``.
    Without one, *recognizer* reads well-known forms, until the program reports in protocol lines.
    """

    def __init__(self, now: float, pattern: str | None = None, recognizer: Recognizer | None = None) -> None:
        self.alive = False  # has printed anything
        self.last_progress = now
        self.iteration: int | None = None
        self.first_iteration: int | None = None
        self.first_iteration_time: float | None = None  # Unix seconds; whoever has the clock of the record sets it
        self.first_iteration_elapsed: float | None = (
            None  # when the first iteration was reported, as `Clock.elapsed` counts
        )
        self.resumed: int | None = None
        self.checkpoint: int | None = None
        self.notice_checkpoints = 0
        self.context: Values = {}
        self.result: Values = {}
        self.fatal: str | None = None
        self.stream_used = False  # a rank has taken a batch, or there was none to take
        self.pending: dict[int, tuple[float, Values]] = {}  # of ranks that wait for a batch: since when, and for which
        self._before_output = now  # last_progress before the output that is being read
        self.earlier: list[Metric] = []  # those that the last report came with: when they arrived, and their values
        self._pattern = re.compile(pattern) if pattern else None
        self._recognizer = None if pattern else recognizer

    def recognize_by(self, recognizer: Recognizer) -> None:
        """Read well-known forms by *recognizer* from now on, where there is no pattern."""
        self._recognizer = None if self._pattern else recognizer

    @property
    def recognized(self) -> tuple[str, str] | None:
        """The name of the form that was recognized and a line of it, or None."""
        recognizer = self._recognizer
        return (recognizer.form.name, str(recognizer.line)) if recognizer and recognizer.form else None

    def output_received(self, now: float) -> None:
        """Note that output came, be it half a line: it is progress as long as no iteration was reported.

        A program whose form was recognized did not say that only iterations are progress, so all its output is.
        """
        self.alive = True
        if self.iteration is None or self.recognized:
            self._before_output, self.last_progress = self.last_progress, now

    def read(self, member: Member, line: Line, now: float) -> Report | None:
        """The (kind, values) that *line* of *member* reports, or None for plain output; it counts here."""
        report = self._parse(member, line, now)
        if report is None:
            if self.iteration is None:
                self._before_output = self.last_progress = now
            return None
        kind, values = report
        getattr(self, "_" + kind)(values, now)
        return report

    def read_state(self, member: Member, line: Line, now: float) -> Report | None:
        """What `LineSplitter.states` of rank 0 reports, by the pattern or in a form that is recognized."""
        if member != COORDINATOR or line.rank or not (self._pattern or self._recognizer):
            return None
        return self.read(member, line._replace(stream="e"), now)

    def _parse(self, member: Member, line: Line, now: float) -> Report | None:
        self.earlier = []
        if line.stream == "o":
            report = protocol.decode(line.text)
            if report:
                self._take_protocol(report[0])
                return report
        if member != COORDINATOR or line.rank:
            return None
        values = self._match(self._pattern, line.text[:_MAX_MATCHED]) if self._pattern else self._recognize(line, now)
        # Where the launcher does not tag ranks, every rank prints the same iteration: the first one counts.
        return (protocol.METRIC, values) if values and values["iteration"] != self.iteration else None

    def _take_protocol(self, kind: str) -> None:
        """Recognize nothing more, since the program reports by itself; lines of our functions are not its own."""
        if kind not in _OF_FUNCTIONS and self._recognizer:
            if self.recognized:
                self.iteration = self.first_iteration = self.first_iteration_time = self.first_iteration_elapsed = None
            self._recognizer = None

    def _recognize(self, line: Line, now: float) -> Values | None:
        metrics = self._recognizer.read(line.text, now) if self._recognizer else []
        self.earlier = metrics[:-1]
        for _, values in self.earlier:
            self._metric(values, now)
        return metrics[-1][1] if metrics else None

    def _match(self, pattern: re.Pattern[str], line: str) -> Values | None:
        match = pattern.search(line)
        if not match:
            return None
        values = {name: _number(text) for name, text in match.groupdict().items() if text is not None}
        iteration = values.get("iteration")
        metric = {**values, "iteration": int(iteration)} if isinstance(iteration, (int, float)) else {}
        return metric if protocol.valid(protocol.METRIC, metric) else None

    def _metric(self, values: Values, now: float) -> None:
        iteration = values.get("iteration")
        if isinstance(iteration, int) and (self.iteration is None or iteration > self.iteration):
            if self.first_iteration is None:
                self.first_iteration = iteration - max(len(values.get("seconds") or []), 1) + 1
            self.iteration = iteration
            self.last_progress = now

    def _context(self, values: Values, now: float) -> None:
        self.context = values
        self.last_progress = now

    def _resumed(self, values: Values, now: float) -> None:
        self.resumed = values.get("iteration")
        self.last_progress = now

    def _evaluation(self, values: Values, now: float) -> None:
        self.last_progress = now

    def _checkpoint(self, values: Values, now: float) -> None:
        self.checkpoint = values.get("iteration")
        self.last_progress = now
        if values.get("reason") == "notice":
            self.notice_checkpoints += 1

    def _result(self, values: Values, now: float) -> None:
        self.result = values
        self.last_progress = now

    def _stream(self, values: Values, now: float) -> None:
        self.stream_used = True
        rank, pending = int(values["rank"]), values.get("pending")
        if not isinstance(pending, dict):
            self.pending.pop(rank, None)
            self.last_progress = now
            return
        seconds = pending.get("seconds")
        self.pending[rank] = (now - seconds if isinstance(seconds, (int, float)) else now, pending)
        if self.iteration is None:
            self.last_progress = self._before_output

    def longest_wait(self, now: float) -> str | None:
        """The batch of a stream that holds up a rank the longest, as part of a message; None if none does."""
        if not self.pending:
            return None
        rank, (since, values) = min(self.pending.items(), key=lambda item: item[1][0])
        rows = str(values.get("rows"))[:_MAX_ROWS]
        worker, batch = values.get("worker"), "batch %s (%s)" % (values.get("batch"), rows)
        if worker is None:
            return "rank %d has waited %d s for %s" % (rank, now - since, batch)
        return "%s has spent %d s on %s, and rank %d waits" % (worker, now - since, batch, rank)

    def _fatal(self, values: Values, now: float) -> None:
        reason = values.get("reason")
        self.fatal = (
            reason if reason and isinstance(reason, str) else "the program reported a fatal error without a reason"
        )


def _number(text: str) -> int | float | str | None:
    """The number or text in *text*; None for what JSON has no number for, such as nan."""
    try:
        return protocol.number(text)
    except ValueError:
        return text
