"""What a user sees of a run while it goes: lines on stdout, talk and progress on stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from spotmpi.agent import protocol, record
from spotmpi.core.events import Event
from spotmpi.core.printable import printable, printable_lines, printable_output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SCALARS = 20  # that are shown of one line
_NAME = 60  # letters of a scalar's name
_LATE = 365 * 86400.0  # seconds
_OF_THE_LINE = frozenset({"iteration", "time", "epoch", "seconds", "waited", "ranks", "kind", "samples"})


class View(Protocol):
    """Shows events, and says things besides; used as a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def show(self, event: Event) -> None:
        """Show one event."""
        ...

    def say(self, text: str) -> None:
        """Say something to the user."""
        ...


def make_view(quiet: bool) -> View:
    """Nothing but talk when *quiet*; a progress bar where stderr is a terminal; plain lines elsewhere."""
    if quiet:
        return QuietView()
    return LiveView() if sys.stderr.isatty() else PlainView()


def say(text: str) -> None:
    """One line to the user on stderr."""
    print(f"spotmpi: {printable_lines(text)}", file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """One line of a program's output on stdout: as it is, or as a terminal may show it."""
    print(printable_output(text) if sys.stdout.isatty() else text, flush=True)


class QuietView:
    """Says what is said, shows no events."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stdout.flush()

    def show(self, event: Event) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """One line on stderr."""
        say(text)


class PlainView(QuietView):
    """Lines to stdout as they come, everything else one line each on stderr."""

    def __init__(self) -> None:
        self._pace = Pace()

    def show(self, event: Event) -> None:
        """Print the event."""
        if event.kind == record.LINE:
            print_line(event.values["text"])
            return
        self._pace.take(event)
        text = event_text(event, self._pace)
        if text:
            self.say(text)


class TurnsView(QuietView):
    """Says how attempts begin and end and what they wait for, nothing of what ranks say."""

    def show(self, event: Event) -> None:
        """One line on stderr, where it is a turn."""
        text = "" if event.kind in (record.LINE, record.METRIC) else event_text(event, Pace())
        if text:
            self.say(text)


class LiveView(QuietView):
    """Like `PlainView`, with rank 0's progress as a bar instead of lines."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._started: tuple[Progress, TaskID] | None = None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._started:
            self._bar.stop()

    @property
    def _bar(self) -> Progress:
        return self._under_way()[0]

    def _under_way(self) -> tuple[Progress, TaskID]:
        """The bar, made when there is a first event: then the run is starting already, and rich may take its time."""
        if self._started is None:
            bar = _bar()
            self._started = bar, bar.add_task("waiting for the first iteration", total=None, status="")
            bar.start()
        return self._started

    def show(self, event: Event) -> None:
        """Print the event, or move the bar."""
        bar, task = self._under_way()
        if event.kind == record.LINE:
            self._print(event.values["text"])
            return
        self._pace.take(event)
        if event.kind == record.METRIC and event.values.get("kind") == protocol.METRIC:
            bar.update(
                task,
                description="training",
                completed=self._pace.iteration,
                total=self._pace.total,
                status=self._pace.status(),
            )
            return
        text = event_text(event, self._pace)
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        if self._started is None:
            say(text)
            return
        self._bar.console.print(f"spotmpi: {printable_lines(text)}", markup=False, highlight=False, emoji=False)

    def _print(self, text: str) -> None:
        if sys.stdout.isatty():
            from rich.text import Text

            self._bar.console.print(Text.from_ansi(printable_output(text)), soft_wrap=True)
        else:
            print_line(text)


class Pace:
    """How fast an attempt goes and when it will be done, from its events."""

    def __init__(self) -> None:
        self.iteration = 0
        self.total: int | None = None
        self.rate: float | None = None
        self.scalars: dict[str, Any] = {}
        self._before: tuple[float, int] | None = None

    def take(self, event: Event) -> None:
        """Note what *event* says of progress."""
        if event.kind == record.STARTED:
            self._before, self.rate = None, None
        if event.kind != record.METRIC:
            return
        values = event.values
        self.total = values.get("total_iterations", self.total)
        if values.get("kind") != protocol.METRIC or values.get("iteration") is None:
            return
        self.iteration = values["iteration"]
        self.scalars = {key: value for key, value in values.items() if key not in _OF_THE_LINE}
        self._measure(event)

    def _measure(self, event: Event) -> None:
        seconds = event.values.get("seconds")
        if seconds and sum(seconds) > 0:
            self.rate = len(seconds) / sum(seconds)
        elif self._before and event.time > self._before[0]:
            self.rate = (self.iteration - self._before[1]) / (event.time - self._before[0])
        self._before = (event.time, self.iteration)

    def status(self) -> str:
        """Rate, time to go and scalars, as far as they are known."""
        parts = []
        if self.rate:
            parts.append(f"{self.rate:.4g} it/s")
            if self.total:
                parts.append(f"ETA {_duration(max((self.total - self.iteration) / self.rate, 0))}")
        return "  ".join([*parts, *_scalars(self.scalars)])


def event_text(event: Event, pace: Pace) -> str:
    """One line that tells *event* to a person; empty where there is nothing to tell."""
    if event.kind == record.METRIC:
        return _metric_text(event.values, pace)
    because = f": {printable(event.reason)}" if event.reason else ""
    if event.kind == record.STARTED:
        return f"attempt {event.attempt} started"
    if event.kind == record.RESTARTED:
        counted = (f"{event.values.get(what, 0)} {what}" for what in ("failures", "interruptions"))
        counts = f"{printable(', '.join(counted))} so far"
        return f"starting again ({counts}){because}"
    if event.kind in (record.WAITING, record.INTERRUPTED, record.GAP):
        return event.kind + because
    return ""


def _metric_text(values: dict[str, Any], pace: Pace) -> str:
    kind, iteration = values.get("kind"), values.get("iteration")
    if kind == protocol.METRIC:
        return f"iteration {pace.iteration}" + (f"/{pace.total}" if pace.total else "") + f"  {pace.status()}"
    scalars = "  ".join(_scalars(values))
    if kind in (protocol.EVALUATION, protocol.RESULT):
        return f"{kind} at iteration {iteration}  {scalars}"
    if kind == protocol.CHECKPOINT:
        return f"checkpoint at iteration {iteration} ({printable(values.get('reason', 'timer'))})"
    if kind == protocol.RESUMED:
        return f"resumed from the checkpoint of iteration {iteration}"
    return ""


def _scalars(values: dict[str, Any]) -> list[str]:
    """Name and value of the first scalars, as many as a person reads."""
    numbers = [(key, value) for key, value in values.items() if isinstance(value, int | float)]
    shown = [f"{printable(key, _NAME)} {_number(value)}" for key, value in numbers if key not in _OF_THE_LINE]
    return shown[:_SCALARS] + ["..."] * (len(shown) > _SCALARS)


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    if seconds > _LATE:
        return "later than in a year"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=Console(stderr=True),
    )
