"""Events on stdout, for people and for scripts."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotmpi.agent import record
from spotmpi.api.drill import Recovery
from spotmpi.cli.view import Pace, event_text, say
from spotmpi.core.errors import input_error
from spotmpi.core.events import Event, Lines, Stream
from spotmpi.core.printable import printable, printable_output
from spotmpi.spec.job import read_duration


@dataclass(frozen=True)
class Filter:
    """Which events are printed: those newer than ``since`` (Unix seconds), and lines of a node that match a pattern."""

    node: int | None
    pattern: re.Pattern[str]
    since: float

    @classmethod
    def of(cls, node: int | None, grep: str | None, age: str | None) -> Filter:
        """The filter that a command's options stand for; InputError where one cannot be read."""
        try:
            pattern = re.compile(grep or "")
        except re.error as error:
            raise input_error("--grep", grep, f"is not a regular expression: {error}") from None
        return cls(node, pattern, time.time() - read_duration("--since", age) if age else 0.0)

    def passes(self, event: Event) -> bool:
        """Whether *event* is wanted."""
        if event.time < self.since:
            return False
        if event.kind != record.LINE:
            return True
        return self.node in (None, event.node) and bool(self.pattern.search(event.values["text"]))

    def texts(self, lines: Lines) -> Sequence[str]:
        """The texts of those *lines* that are wanted."""
        if self.node is None and not self.pattern.pattern and min(lines.times) >= self.since:
            return lines.texts
        return [event.values["text"] for event in lines.events() if self.passes(event)]


def print_events(events: Iterable[Event], wanted: Filter, as_json: bool, live: bool) -> None:
    """Print the *wanted* lines of output, with *live* each as soon as it comes.

    A terminal gets no control characters of theirs but colours; a file gets each line as it was written.
    As JSON every event is an object on a line of its own; else what is not output goes to stderr.
    """
    pace = Pace()
    show = printable_output if sys.stdout.isatty() else str
    pieces = events.pieces if isinstance(events, Stream) and not as_json else iter(events)
    for piece in pieces:
        if isinstance(piece, Lines):
            if texts := wanted.texts(piece):
                print("\n".join(map(show, texts)), flush=live)
        elif not wanted.passes(piece):
            continue
        elif as_json:
            print(json.dumps(piece.to_json()), flush=live)
        elif piece.kind == record.LINE:
            print(show(piece.values["text"]), flush=live)
        else:
            _tell(piece, pace)


def print_recovery(recovery: Recovery, as_json: bool) -> None:
    """Print what a fault cost, in one line."""
    print(json.dumps(vars(recovery)) if as_json else printable(recovery))


def _tell(event: Event, pace: Pace) -> None:
    pace.take(event)
    text = event_text(event, pace)
    if text:
        say(text)
    elif event.terminal:
        say(event.kind + (f": {printable(event.reason)}" if event.reason else ""))
