"""What a program reported, turned into rates: warm-up dropped, every iteration counted once. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from spotmpi.agent import protocol
from spotmpi.metrics.rank_times import Shares

WARM_UP_ITERATIONS = 10
WARM_UP_SHARE = 0.1

_WIDEST = 1_000_000  # iterations between two lines; a counter that gets further at once counts something else
_LARGEST = 1e100  # of a scalar; sums and squares of such are still finite
_FASTEST = 1e9  # iterations/s; a clock tells no more

RULE = (
    f"Of each attempt everything up to its first reported window and its first {WARM_UP_ITERATIONS} iterations, or its "
    f"first {WARM_UP_SHARE * 100:g} % where that is more, are dropped as warm-up. The iterations on both sides of an "
    "evaluation or a checkpoint are left out, and so is the window in which an attempt was interrupted. Iterations "
    "that an attempt repeats after a restart count once, as the later attempt made them. The rate is iterations over "
    "the sum of their seconds."
)
ARRIVAL_RULE = (
    "This program does not time its iterations: a window's seconds run from the arrival of one line to that of the "
    "next, so an iteration's time is the mean of its window."
)

_OUTSIDE = frozenset({"t", "attempt", "node", "kind"})  # what tells of a line and not of the training
_NO_SCALARS = _OUTSIDE | {"iteration", "time", "seconds", "epoch", "waited"}

Line = Mapping[str, Any]  # one line of metrics.jsonl


@dataclass(frozen=True)
class Rates:
    """How fast the iterations went that count.

    ``per_second`` is iterations over the sum of their ``seconds``; ``median`` is of seconds per iteration and ``iqr``
    the distance of its quartiles divided by it. ``left_out`` counts the others by reason, those too whose times went
    with an interrupted attempt. ``kept`` are the seconds
    themselves, in order.
    """

    iterations: int
    seconds: float
    per_second: float
    median: float
    iqr: float
    by_arrival: bool
    left_out: dict[str, int]
    kept: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Point:
    """A scalar after an iteration, ``time`` seconds after the run's first report."""

    iteration: int
    time: float
    value: float


@dataclass(frozen=True)
class Training:
    """What the lines of a run say; ``rates`` is None where too few iterations count, and ``reported`` says how many.

    ``series`` holds each scalar of metric lines, ``evaluations`` each of evaluation lines, in order of iterations.
    ``waited`` is the share of the time that went by waiting for batches, and ``ranks`` the mean seconds of an iteration
    on each rank; both leave out what came before the first line of each attempt, and are there where a program tells.
    """

    rates: Rates | None
    reported: int
    attempts: int
    context: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Point]] = field(default_factory=dict)
    evaluations: dict[str, list[Point]] = field(default_factory=dict)
    waited: float | None = None
    ranks: tuple[float, ...] = ()


@dataclass
class _Window:
    """Iterations *first* and on, one entry of *seconds* each."""

    first: int
    seconds: list[float]
    by_arrival: bool

    @property
    def last(self) -> int:
        return self.first + len(self.seconds) - 1


@dataclass
class _Attempt:
    windows: list[_Window] = field(default_factory=list)
    disturbed: set[int] = field(default_factory=set)  # iterations beside an evaluation or checkpoint
    first: int | None = None  # the first iteration that it made
    before: tuple[float, int] | None = None  # arrival and iteration of the last metric line
    cut: int = 0  # iterations of the window in which notice came


def read(lines: Iterable[Line]) -> Training:
    """What the lines of a ``metrics.jsonl`` say, in their order.

    Lines of other nodes than the first, and those that no agent has written, are ignored.
    """
    reading = _Reading()
    for line in lines:
        if line.get("node", 0) == 0 and _is_sound(line):
            reading.take(line)
    return reading.done()


def _is_sound(line: Line) -> bool:
    kind, attempt = line.get("kind"), line.get("attempt", 1)
    return isinstance(kind, str) and isinstance(attempt, int) and protocol.sound(kind, dict(line))


class _Reading:
    def __init__(self) -> None:
        self.attempts: dict[int, _Attempt] = {}
        self.context: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self.series: dict[str, list[Point]] = {}
        self.evaluations: dict[str, list[Point]] = {}
        self.start: float | None = None
        self.shares = Shares()

    def take(self, line: Line) -> None:
        self.start = line["t"] if self.start is None else self.start
        attempt = self.attempts.setdefault(line.get("attempt", 1), _Attempt())
        kind, iteration = line["kind"], line.get("iteration")
        if kind == protocol.CONTEXT:
            self.context = _said(line)
        elif kind == protocol.RESULT:
            self.result = _said(line)
        elif not isinstance(iteration, int):
            return
        elif kind == protocol.METRIC:
            fresh = attempt.first is None
            _measure(attempt, line, iteration)
            if fresh and attempt.first is not None:
                self._forget(attempt.first)
            elif not fresh:
                self.shares.take(line)
            self._note(self.series, line)
        elif kind == protocol.EVALUATION:
            attempt.disturbed |= {iteration, iteration + 1}
            self._note(self.evaluations, line)
        elif kind == protocol.CHECKPOINT:
            attempt.disturbed |= {iteration, iteration + 1}

    def _forget(self, first: int) -> None:
        """Drop what earlier attempts said of the iterations that a new one makes again, from *first* on."""
        for points in (*self.series.values(), *self.evaluations.values()):
            while points and points[-1].iteration >= first:
                points.pop()

    def _note(self, into: dict[str, list[Point]], line: Line) -> None:
        for name, value in _scalars(line).items():
            into.setdefault(name, []).append(Point(line["iteration"], line["t"] - (self.start or 0.0), value))

    def done(self) -> Training:
        attempts = [attempt for attempt in self.attempts.values() if attempt.first is not None]
        reported = sum(len(window.seconds) for attempt in attempts for window in attempt.windows)
        return Training(
            _rates(attempts),
            reported,
            len(self.attempts),
            self.context,
            self.result,
            self.series,
            self.evaluations,
            self.shares.waited(),
            self.shares.ranks(),
        )


def _measure(attempt: _Attempt, line: Line, iteration: int) -> None:
    seconds = line.get("seconds")
    if seconds:
        window = _Window(iteration - len(seconds) + 1, list(seconds), by_arrival=False)
    elif attempt.before and 0 < iteration - attempt.before[1] <= _WIDEST and line["t"] >= attempt.before[0]:
        moment, last = attempt.before
        count = iteration - last
        window = _Window(last + 1, [(line["t"] - moment) / count] * count, by_arrival=True)
    else:
        # A first line, or a counter that starts anew or leaps, only opens a window.
        window = _Window(iteration, [], by_arrival=True)
    if attempt.first is None:
        attempt.first = window.first
    attempt.before = (line["t"], iteration)
    if line.get("cut"):
        attempt.cut = len(window.seconds)
    elif window.seconds:
        attempt.windows.append(window)


def _rates(attempts: list[_Attempt]) -> Rates | None:
    reasons = ("warm-up", "beside an evaluation or checkpoint", "repeated after a restart", "in an interrupted window")
    left_out = dict.fromkeys(reasons, 0)
    kept: list[float] = []
    by_arrival = False
    for index, attempt in enumerate(attempts):
        later = [after.first for after in attempts[index + 1 :] if after.first is not None]
        windows, repeated = _before(attempt.windows, min(later, default=None))
        windows, warm_up = _warmed_up(windows, sum(len(window.seconds) for window in attempt.windows))
        calm, disturbed = _undisturbed(windows, attempt.disturbed)
        for reason, count in zip(reasons, (warm_up, disturbed, repeated, _interrupted(attempt, later)), strict=True):
            left_out[reason] += count
        kept += calm
        by_arrival = by_arrival or any(window.by_arrival for window in attempt.windows)
    total = sum(kept)
    if len(kept) < 2 or total * _FASTEST <= len(kept):
        return None
    median = statistics.median(kept)
    low, _, high = statistics.quantiles(kept, n=4, method="inclusive")
    iqr = (high - low) / median if median > 0 else math.inf
    return Rates(len(kept), total, len(kept) / total, median, iqr, by_arrival, left_out, tuple(kept))


def _interrupted(attempt: _Attempt, later: list[int]) -> int:
    """How many iterations of the window in which it was interrupted an attempt had made, and the next one did not."""
    if not later or not attempt.windows or attempt.windows[-1].by_arrival:
        return attempt.cut
    return max(later[0] - attempt.windows[-1].last - 1, 0)


def _before(windows: list[_Window], limit: int | None) -> tuple[list[_Window], int]:
    """The windows without iterations from *limit* on, and how many those were."""
    if limit is None:
        return windows, 0
    kept, dropped = [], 0
    for window in windows:
        count = min(max(limit - window.first, 0), len(window.seconds))
        dropped += len(window.seconds) - count
        if count:
            kept.append(_Window(window.first, window.seconds[:count], window.by_arrival))
    return kept, dropped


def _warmed_up(windows: list[_Window], made: int) -> tuple[list[_Window], int]:
    """The windows after the warm-up of an attempt of *made* iterations, and how many iterations were dropped.

    Windows known by arrival only are dropped whole: their mean holds the warm-up.
    """
    wanted = max(WARM_UP_ITERATIONS, math.ceil(made * WARM_UP_SHARE))
    kept, dropped = [], 0
    for window in windows:
        left = max(wanted - dropped, 0)
        count = len(window.seconds) if left and window.by_arrival else min(left, len(window.seconds))
        dropped += count
        if count < len(window.seconds):
            kept.append(_Window(window.first + count, window.seconds[count:], window.by_arrival))
    return kept, dropped


def _undisturbed(windows: list[_Window], disturbed: set[int]) -> tuple[list[float], int]:
    kept: list[float] = []
    dropped = 0
    for window in windows:
        hit = disturbed.intersection(range(window.first, window.last + 1))
        if hit and window.by_arrival:
            dropped += len(window.seconds)
            continue
        dropped += len(hit)
        kept += [second for at, second in enumerate(window.seconds, window.first) if at not in hit]
    return kept, dropped


def _said(line: Line) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in _OUTSIDE}


def _scalars(line: Line) -> dict[str, float]:
    return {key: float(value) for key, value in line.items() if key not in _NO_SCALARS and is_number(value)}


def is_number(value: object) -> TypeGuard[float]:
    """Whether *value* is a number that can be reckoned with and drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
