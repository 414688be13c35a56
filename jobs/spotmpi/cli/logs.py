"""`spotmpi logs`: the output of a run, for people and for scripts."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, RunId, TargetOptions

if TYPE_CHECKING:
    from spotmpi.agent.plan import Member
    from spotmpi.api.view import Throughput
    from spotmpi.backends.targets import Target
    from spotmpi.core.events import Event, Lines


@dataclass(frozen=True)
class FilterOptions:
    """Options that choose which events are printed."""

    node: Annotated[
        str | None, typer.Option("--node", help="Only lines of this node, such as 1, or of a worker, such as worker/0.")
    ] = None
    since: Annotated[
        str | None, typer.Option("--since", help="Only what is newer than this, such as 10m or 2h.", metavar="AGE")
    ] = None
    grep: Annotated[str | None, typer.Option("--grep", help="Only lines that match this regular expression.")] = None

    def filter(self, run: str, target: Target) -> Filter:
        """The filter that they describe; InputError for a wrong pattern or duration, or a member that *run* lacks."""
        from spotmpi.api.runs import find_member, status
        from spotmpi.core.errors import input_error

        chosen = None if self.node is None else find_member(status(run, target), self.node)
        try:
            pattern = re.compile(self.grep or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise input_error("--grep", self.grep, f"is not a regular expression: {error}") from None
        if self.since is None:
            return Filter(chosen, pattern, 0.0)
        from spotmpi.spec.job import read_duration

        return Filter(chosen, pattern, time.time() - read_duration("--since", self.since))


def command(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    options: FilterOptions = FilterOptions(),
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Print a run's output from its first line on.

    With --json it prints every event of the run.
    """
    from spotmpi.api import runs as api
    from spotmpi.cli.run import report_cost
    from spotmpi.core.wording import echo

    target = where.target
    chosen = options.filter(run, target)
    print_events(api.logs(run, follow, target), chosen, as_json, live=follow)
    if follow:
        report_cost(api.status(run, target, echo), target)  # status keeps its model where the spec asks for it


@dataclass(frozen=True)
class Filter:
    """Which events are printed: those newer than ``since`` (Unix seconds), and lines of a member by a pattern."""

    member: Member | None
    pattern: re.Pattern[str]
    since: float

    def matches(self, event: Event) -> bool:
        """Whether *event* is printed."""
        if event.time < self.since:
            return False
        if event.kind != "line":
            return True
        return self.member in (None, event.member) and bool(self.pattern.search(event.values["text"]))

    def texts(self, lines: Lines) -> Sequence[str]:
        """The texts of those *lines* that are printed."""
        if self.member is None and not self.pattern.pattern and min(lines.times) >= self.since:
            return lines.texts
        return [event.values["text"] for event in lines.events() if self.matches(event)]


def print_events(events: Iterable[Event], chosen: Filter, as_json: bool, live: bool) -> None:
    """Print the *chosen* lines of output, with *live* each as soon as it comes.

    A terminal gets no control characters of theirs but colours; a file gets each line as it was written.
    As JSON every event is an object on a line of its own; else what is not output goes to stderr, also that there is no
    output of the chosen member.
    """
    from spotmpi.agent import record
    from spotmpi.api.view import Throughput
    from spotmpi.core.events import Lines, Stream
    from spotmpi.core.wording import echo, printable_output

    throughput = Throughput()
    show = printable_output if sys.stdout.isatty() else str
    pieces = events.pieces if isinstance(events, Stream) and not as_json else iter(events)
    members: set[Member] = set()  # those with output
    for piece in pieces:
        if piece.member is not None and (isinstance(piece, Lines) or piece.kind == record.LINE):
            members.add(piece.member)
        if isinstance(piece, Lines):
            if texts := chosen.texts(piece):
                print("\n".join(map(show, texts)), flush=live)
        elif not chosen.matches(piece):
            continue
        elif as_json:
            print(json.dumps(piece.to_json()), flush=live)
        elif piece.kind == record.LINE:
            print(show(piece.values["text"]), flush=live)
        else:
            _echo_event(piece, throughput)
    if chosen.member not in {None, *members}:
        others = f"only of {', '.join(map(str, sorted(members)))}" if members else "nor of any other node"
        echo(f"no output of {chosen.member}, {others}")


def _echo_event(event: Event, throughput: Throughput) -> None:
    from spotmpi.api.view import event_text
    from spotmpi.core.wording import echo, printable

    throughput.update(event)
    text = event_text(event, throughput)
    if text:
        echo(text)
    elif event.terminal:
        echo(event.kind + (f": {printable(event.reason)}" if event.reason else ""))
