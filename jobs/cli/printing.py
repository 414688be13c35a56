"""Events on stdout, for people and for scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from jobs.cli.view import Pace, event_text, say
from jobs.drill import Recovery
from jobs.errors import wrong
from jobs.events import Event
from jobs.pod import record


def print_events(events: Iterable[Event], node: int | None, grep: str | None, as_json: bool) -> None:
    """Print lines of output, of one *node* or matching *grep* where given, as they come.

    As JSON every event is an object on a line of its own; else what is not output goes to stderr.
    """
    try:
        pattern = re.compile(grep or "")
    except re.error as error:
        raise wrong("--grep", grep, f"is not a regular expression: {error}") from None
    pace = Pace()
    for event in events:
        if event.kind == record.LINE and not (node in (None, event.node) and pattern.search(event.values["text"])):
            continue
        if as_json:
            print(json.dumps(event.to_json()), flush=True)
        elif event.kind == record.LINE:
            print(event.values["text"], flush=True)
        else:
            _tell(event, pace)


def print_recovery(recovery: Recovery, as_json: bool) -> None:
    """Print what a fault cost, in one line."""
    print(json.dumps(vars(recovery)) if as_json else recovery)


def _tell(event: Event, pace: Pace) -> None:
    pace.take(event)
    text = event_text(event, pace)
    if text:
        say(text)
    elif event.terminal:
        say(event.kind + (f": {event.reason}" if event.reason else ""))
