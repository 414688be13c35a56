"""What a user sees while following a run: its output on stdout, messages and progress on stderr."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import read_member
from spotmpi.core.events import Event
from spotmpi.core.wording import counted, echo, printable, printable_lines, printable_output
from spotmpi.runs.reader import RunState
from spotmpi.streams.figures import Figures, Reports
from spotmpi.streams.figures import text as stream_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SCALARS = 20  # shown of one event
_NAME = 60  # characters of a scalar's name
_RATE_SECONDS = 1.0  # that a rate by the arrival of lines has at least: lines of a slow moment arrive together
_LINE = 120  # characters of an example of output
_STREAM_EVERY = 30.0  # seconds between lines with the figures of a stream
_BAR_EVERY = 10.0  # seconds between lines that stand for a progress bar, which shows ten states a second
_YEAR = 365 * 86400.0  # seconds
_NOT_SCALARS = frozenset({"iteration", "time", "epoch", "seconds", "waited", "ranks", "kind", "samples", "uptime"})


def make_view(quiet: bool) -> QuietView:
    """Only messages if *quiet*; a progress bar if stderr is a terminal; else plain lines."""
    if quiet:
        return QuietView()
    return LiveView() if sys.stderr.isatty() else PlainView()


def print_line(text: str) -> None:
    """Print a line of a program's output on stdout; a terminal gets no control characters but colours."""
    print(printable_output(text) if sys.stdout.isatty() else text, flush=True)


class QuietView:
    """Shows messages and no events, as other views do; used as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stdout.flush()

    def show(self, event: Event) -> None:
        """Nothing."""

    def echo(self, text: str) -> None:
        """Print a message on stderr."""
        echo(text)

    def _echo_event(self, event: Event, throughput: Throughput) -> None:
        if text := event_text(event, throughput):
            self.echo(text)


class PlainView(QuietView):
    """Prints output on stdout as it comes, and every other event as one line on stderr."""

    def __init__(self) -> None:
        self._throughput = Throughput()

    def show(self, event: Event) -> None:
        """Print the event."""
        if event.kind == record.LINE:
            print_line(event.values["text"])
            return
        self._throughput.update(event)
        self._echo_event(event, self._throughput)


class AttemptView(QuietView):
    """Shows how attempts begin and end and what they wait for, but no output or metrics of ranks."""

    def show(self, event: Event) -> None:
        """Print the event on stderr, unless it is output or a metric."""
        if event.kind not in (record.LINE, record.METRIC):
            self._echo_event(event, Throughput())


class LiveView(QuietView):
    """Like `PlainView`, with rank 0's progress as a bar instead of lines."""

    def __init__(self) -> None:
        self._throughput = Throughput()
        self._started: tuple[Progress, TaskID] | None = None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._started:
            bar, task = self._started
            bar.update(task, visible=self._throughput.iteration > 0)  # else it still waits for one on the screen
            bar.stop()

    @property
    def _bar(self) -> Progress:
        return self._start()[0]

    def _start(self) -> tuple[Progress, TaskID]:
        """The bar; it is created at the first event, when the import of rich no longer delays the start of the run."""
        if self._started is None:
            bar = _new_bar()
            self._started = bar, bar.add_task("waiting for the first iteration", total=None, status="")
            bar.start()
        return self._started

    def show(self, event: Event) -> None:
        """Print the event, or move the bar."""
        bar, task = self._start()
        if event.kind == record.LINE:
            self._print(event.values["text"])
            return
        self._throughput.update(event)
        if event.kind == record.METRIC and event.values.get("kind") in (protocol.METRIC, protocol.STREAM):
            bar.update(
                task,
                description="training" if self._throughput.iteration else "batches",
                completed=self._throughput.iteration,
                total=self._throughput.total,
                status=self._throughput.status(),
            )
            return
        self._echo_event(event, self._throughput)

    def echo(self, text: str) -> None:
        """Print a message on stderr, above the bar if there is one."""
        if self._started is None:
            echo(text)
            return
        self._bar.console.print(f"spotmpi: {printable_lines(text)}", markup=False, highlight=False, emoji=False)

    def _print(self, text: str) -> None:
        if sys.stdout.isatty():
            from rich.text import Text

            self._bar.console.print(Text.from_ansi(printable_output(text)), soft_wrap=True)
        else:
            print_line(text)


class Throughput:
    """Rate and progress of an attempt, from its events."""

    def __init__(self) -> None:
        self.iteration = 0
        self.in_output = False  # whether iterations are read from lines of the output, and need no other line
        self.total: int | None = None
        self.rate: float | None = None
        self.scalars: dict[str, Any] = {}
        self._lines = deque[tuple[dict[str, Any], int]]()  # of about `_RATE_SECONDS`, and their iterations
        self._reports: Reports | None = None  # of its stream
        self._stream_shown: float | None = None  # time of the event with which its figures were shown last
        self._is_bar = False  # whether iterations are read from a progress bar
        self._bar_shown = float("-inf")  # time of the event of the last line for it

    def update(self, event: Event) -> None:
        """Take the progress from *event*."""
        if event.kind == record.STARTED:
            self._lines.clear()
            self.rate = None
        if event.kind == record.RECOGNIZED:
            self._is_bar = str(event.values.get("form", "")).endswith("bar")
            self.in_output = not self._is_bar
        if event.kind != record.METRIC:
            return
        values = event.values
        if values.get("kind") == protocol.STREAM:
            self._reports = self._reports or Reports()
            self._reports.add(values, event.attempt)
        self.total = values.get("total_iterations", self.total)
        if values.get("kind") != protocol.METRIC or values.get("iteration") is None:
            return
        self.iteration = values["iteration"]
        self.scalars = {key: value for key, value in values.items() if key not in _NOT_SCALARS}
        self._measure(event)

    def _measure(self, event: Event) -> None:
        from spotmpi.metrics.rates import seconds_between  # only after the start of a run, which it would delay by 5 ms

        before = self._lines[-1][1] if self._lines else None
        if before == self.iteration:
            return  # a line that repeats its iteration, which the first one has ended
        line = {**event.values, "t": event.time}
        seconds = event.values.get("seconds")
        if seconds and sum(seconds) > 0:
            self.rate = len(seconds) / sum(seconds)
        if seconds or (before is not None and self.iteration < before):  # a counter that begins anew
            self._lines.clear()
        self._lines.append((line, self.iteration))
        while len(self._lines) > 2 and seconds_between(self._lines[1][0], line) >= _RATE_SECONDS:
            self._lines.popleft()
        first, at = self._lines[0]
        if at < self.iteration and (lasted := seconds_between(first, line)) > 0:
            self.rate = (self.iteration - at) / lasted

    def status(self, with_stream: bool = True) -> str:
        """Rate, time left, scalars and the figures of a stream, as far as they are known."""
        parts = []
        if self.rate:
            parts.append(f"{self.rate:.4g} it/s")
            if self.total:
                parts.append(f"ETA {_duration(max((self.total - self.iteration) / self.rate, 0))}")
        figures = self.stream if with_stream else None
        stream = [stream_text(figures)] if figures else []
        return "  ".join([*parts, *_scalars(self.scalars), *stream])

    @property
    def stream(self) -> Figures | None:
        """The figures of the stream's last half minute, if there is one."""
        return self._reports.recent() if self._reports else None

    def due_stream(self, time: float) -> str:
        """The figures of the stream as a line at the *time* of an event; empty until a while after the last line."""
        if self._stream_shown is None:
            self._stream_shown = time
        if abs(time - self._stream_shown) < _STREAM_EVERY or (figures := self.stream) is None:
            return ""
        self._stream_shown = time
        return f"stream: {stream_text(figures)}"

    def is_due(self, time: float) -> bool:
        """Whether there is to be a line for the iteration of an event at *time*, after which the next is due later."""
        if self.in_output or (self._is_bar and abs(time - self._bar_shown) < _BAR_EVERY):
            return False
        self._bar_shown = time
        return True


def result_text(state: RunState) -> str:
    """How a run ended, or its current state."""
    return f"{state.id} {state.state}" + (f": {printable(state.reason)}" if state.reason else "")


def stream_texts(state: RunState) -> list[str]:
    """The figures of a run's stream in a line, and what would help in another; empty without a stream."""
    if state.stream is None:
        return []
    advice = state.stream["advice"]
    return [stream_text(Figures.from_json(state.stream)), *([advice] if advice else [])]


def event_text(event: Event, throughput: Throughput) -> str:
    """*event* as one line for people; empty for output and for events that need no line."""
    if event.kind == record.METRIC:
        kind = event.values.get("kind")
        if kind == protocol.METRIC and not throughput.is_due(event.time):
            return ""
        return throughput.due_stream(event.time) if kind == protocol.STREAM else _metric_text(event.values, throughput)
    because = f": {printable(event.reason)}" if event.reason else ""
    if event.kind == record.STARTED:
        nodes = event.values.get("nodes")
        return f"attempt {event.attempt} started" + (f" on {counted(nodes, 'node')}" if nodes else "")
    if event.kind == record.RESTARTED:
        causes = (f"{what}: {event.values.get(what, 0)}" for what in ("failures", "interruptions"))
        return f"starting again ({printable(', '.join(causes))}){because}"
    if event.kind == record.RECOGNIZED:
        if event.values.get("form") == record.PATTERN:
            return ""  # the user knows it
        form, line = (printable(event.values.get(key, ""), _LINE) for key in ("form", "line"))
        return f"iterations are read from {form}: {line} (metrics.pattern in the spec reads other lines)"
    if event.kind == record.PLACED:
        return printable(f"capacity: {placement_text(event.values)}: {event.reason}")
    if event.kind == record.AVOIDED and not (event.values.get("again") and event.values.get("checked")):
        return printable(f"machine {event.values.get('machine')} is at fault{because}")
    if event.kind in (record.JOINED, record.LEFT):
        if standby := printable(event.values.get("standby") or ""):
            return f"{standby} {'stands by' if event.kind == record.JOINED else 'stands by no longer'}{because}"
        return f"{_member_name(event.values.get('member'))} {event.kind}{because}"
    if event.kind == record.PROMOTED:
        return promotion_text(event.values)
    if event.kind in (record.WAITING, record.INTERRUPTED, record.GAP):
        return event.kind + because
    return ""


def _member_name(text: Any) -> str:
    """A member as messages name it, from an event."""
    try:
        return str(read_member(str(text)))
    except ValueError:
        return printable(text)


def promotion_text(values: Mapping[str, Any]) -> str:
    """Which pod does the work of a lost node, and how long after its last sign of life the ranks were started."""
    standby, replaced = (printable(values.get(key) or "") for key in ("standby", "replaces"))
    seconds = values.get("seconds")
    after = f", {seconds:.1f} s after its last sign of life" if isinstance(seconds, int | float) else ""
    return f"{standby} took over node {values.get('node')} from {replaced}{after}"


def workers_text(workers: Mapping[str, Mapping[str, int]]) -> str:
    """How many of the workers of a pool or stream are ready, with their roles where there are several."""
    counts = {role: f"{each.get('ready', 0)} of {each.get('wanted', '?')} ready" for role, each in workers.items()}
    return ", ".join(f"{role} {text}" if len(counts) > 1 else text for role, text in counts.items())


def placement_text(values: Mapping[str, Any]) -> str:
    """The node group on which a run's nodes are asked for, and what all of them cost an hour."""
    rate = values.get("rate")
    price = f"${rate:.4g} an hour" if isinstance(rate, int | float) else "price unknown"
    return f"{values.get('group')} ({values.get('type')}, {values.get('market')}, {price})"


def _metric_text(values: dict[str, Any], throughput: Throughput) -> str:
    kind, iteration = values.get("kind"), values.get("iteration")
    if kind == protocol.METRIC:
        total = f"/{throughput.total}" if throughput.total else ""
        return f"iteration {throughput.iteration}{total}  {throughput.status(False)}"
    scalars = "  ".join(_scalars(values))
    if kind in (protocol.EVALUATION, protocol.RESULT):
        return f"{kind} at iteration {iteration}  {scalars}"
    if kind == protocol.CHECKPOINT:
        return f"checkpoint at iteration {iteration} ({printable(values.get('reason', 'timer'))})"
    if kind == protocol.RESUMED:
        return f"resumed from the checkpoint of iteration {iteration}"
    return ""


def _scalars(values: dict[str, Any]) -> list[str]:
    """Names and values of the first scalars."""
    numbers = [(key, value) for key, value in values.items() if isinstance(value, int | float)]
    shown = [f"{printable(key, _NAME)} {_format(value)}" for key, value in numbers if key not in _NOT_SCALARS]
    return shown[:_SCALARS] + ["..."] * (len(shown) > _SCALARS)


def _format(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    if seconds > _YEAR:
        return "more than a year"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def _new_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=Console(stderr=True),
    )
