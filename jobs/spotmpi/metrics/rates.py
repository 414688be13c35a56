"""Rates, and the times of each rank, from metric lines: without warm-up, each iteration counted once. Pure."""

from __future__ import annotations

import base64
import binascii
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from spotmpi.agent import protocol
from spotmpi.agent.plan import COORDINATOR

if TYPE_CHECKING:
    from numpy import ndarray

WARM_UP_ITERATIONS = 10
WARM_UP_SHARE = 0.1
_MAX_WINDOW = 1_000_000  # iterations between two lines; a larger step is not a counter of iterations
_MOST = 10_000_000  # iterations that are timed by the arrival of lines, of a run; the first ones
_MAX_SCALAR = 1e100  # of which sums and squares are still finite
_MAX_RATE = 1e9  # iterations/s that a clock can resolve
RULE = (
    f"Of each attempt, everything up to its first reported window and its first {WARM_UP_ITERATIONS} iterations, or "
    f"its first {WARM_UP_SHARE * 100:g} % if that is more, is dropped as warm-up. The iterations before and after an "
    "evaluation or a checkpoint are left out, as is the window in which an attempt was interrupted. Iterations that "
    "are repeated after a restart count once, with the times of the later attempt. The rate is iterations over the sum "
    "of their seconds."
)
ARRIVAL_RULE = (
    "This program does not time its iterations: a window lasts from the arrival of one line to that of the next, and "
    "the time of an iteration is the mean of its window. An iteration that is printed repeatedly ends with the first "
    f"of these lines. Of a run the first {_MOST:,} iterations count."
)
_BEYOND = f"beyond the first {_MOST:,}"
_NON_SCALARS = protocol.LINE_KEYS | {"iteration", "time", "seconds", "epoch", "waited"}
Line = Mapping[str, Any]  # one line of metrics.jsonl


class RankTimes:
    """Sums of metric lines; lines without these times are ignored."""

    def __init__(self) -> None:
        self._input_wait = 0.0
        self._timed = 0.0
        self._packed: dict[int, list[str]] = {}  # iterations in a line -> the lines' texts

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one metric line."""
        seconds, packed = line.get("seconds"), line.get("ranks")
        if not isinstance(seconds, list) or not seconds:
            return
        if isinstance(line.get("waited"), int | float):
            self._input_wait += line["waited"]
            self._timed += math.fsum(seconds)
        if isinstance(packed, str):
            self._packed.setdefault(len(seconds), []).append(packed)

    def input_wait(self) -> float | None:
        """The share of time spent waiting for batches, 0 to 1."""
        return min(self._input_wait / self._timed, 1.0) if self._timed > 0 else None

    def rank_seconds(self) -> tuple[float, ...]:
        """The mean seconds of an iteration on each rank, for the world size of most iterations."""
        sums: dict[int, tuple[int, Any]] = {}  # number of ranks -> iterations, and their seconds
        for size, texts in self._packed.items():
            for rows in unpack(texts, size):
                count, total = sums.get(rows.shape[1], (0, 0.0))
                sums[rows.shape[1]] = (count + rows.shape[0] * size, total + rows.sum(axis=(0, 2), dtype="float64"))
        count, total = max(sums.values(), key=lambda each: each[0], default=(0, ()))
        return tuple(float(value) / count for value in total)


def unpack(texts: list[str], iterations: int) -> list[ndarray]:
    """Output of `protocol.pack` as arrays (lines, ranks, iterations), without damaged lines."""
    import numpy

    by_size: dict[int, list[bytes]] = {}
    for text in texts:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if raw and len(raw) % (4 * iterations) == 0 and _are_seconds(numpy.frombuffer(raw, dtype="<f4")):
            by_size.setdefault(len(raw), []).append(raw)
    return [
        numpy.frombuffer(b"".join(lines), dtype="<f4").reshape(len(lines), -1, iterations) for lines in by_size.values()
    ]


def _are_seconds(values: ndarray) -> bool:
    return bool(((values >= 0) & (values < 1e9)).all())


@dataclass(frozen=True)
class Rates:
    """The rate of the counted iterations.

    ``per_second`` is iterations over the sum of their ``seconds``; ``median`` is that of ``iteration_seconds``, and
    ``iqr`` their interquartile range relative to it, None where they are too short for a clock. ``excluded`` counts the
    other iterations by reason, including those whose times were lost with an interrupted attempt.
    """

    iterations: int
    seconds: float
    per_second: float
    median: float
    iqr: float | None
    by_arrival: bool
    excluded: dict[str, int]
    iteration_seconds: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Point:
    """A scalar after an iteration, ``time`` seconds after the run's first report, without those of a sleep."""

    iteration: int
    time: float
    value: float


@dataclass(frozen=True)
class Training:
    """What a program reported in a run; ``rates`` is None with too few counted iterations, of ``reported`` ones.

    ``unrated`` says where the reported iterations went then.
    ``series`` holds each scalar of metric lines, ``evaluations`` each of evaluation lines, in order of iterations;
    ``not_finite`` are the scalars whose last value was no number, such as the loss of a model that diverged.
    ``input_wait`` is the share of time spent waiting for batches, and ``rank_seconds`` the mean seconds of an iteration
    on each rank, if the program reports them; both exclude the first window of each attempt.
    """

    rates: Rates | None
    reported: int
    context: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Point]] = field(default_factory=dict)
    evaluations: dict[str, list[Point]] = field(default_factory=dict)
    not_finite: frozenset[str] = frozenset()
    input_wait: float | None = None
    rank_seconds: tuple[float, ...] = ()
    unrated: str = ""


@dataclass
class _Window:
    """Consecutive iterations from *first*, with their *seconds*."""

    first: int
    seconds: list[float]
    by_arrival: bool

    @property
    def last(self) -> int:
        return self.first + len(self.seconds) - 1


@dataclass
class _Attempt:
    windows: list[_Window] = field(default_factory=list)
    disturbed: set[int] = field(default_factory=set)  # iterations next to an evaluation or checkpoint
    first: int | None = None  # its first iteration
    has_scalars: bool = False
    before: tuple[Line, int] | None = None  # the first line of the last iteration, and that iteration
    furthest: tuple[Line, int] | None = None  # the same before the counter went back, until the next line
    interrupted: int = 0  # iterations of the window in which the interruption notice arrived
    beyond: int = 0  # iterations that are too many to be timed by the arrival of lines


def read(lines: Iterable[Line]) -> Training:
    """What the lines of a ``metrics.jsonl`` report; invalid lines and those of other nodes than node 0 are ignored."""
    reading = _Reading()
    for line in lines:
        if line.get("member", COORDINATOR.text) == COORDINATOR.text and _is_valid(line):
            reading.add(line)
    return reading.training()


def _is_valid(line: Line) -> bool:
    kind, attempt = line.get("kind"), line.get("attempt", 1)
    timed = is_number(line.get("t"))
    return timed and isinstance(kind, str) and isinstance(attempt, int) and protocol.valid(kind, dict(line))


class _Reading:
    """What the lines of a run's metrics have told so far, attempt by attempt."""

    def __init__(self) -> None:
        self.attempts: dict[int, _Attempt] = {}
        self.context: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self.series: dict[str, list[Point]] = {}
        self.evaluations: dict[str, list[Point]] = {}
        self.not_finite: frozenset[str] = frozenset()
        self.latest: tuple[Line, float] | None = None  # the line before, and its seconds since the first
        self.rank_times = RankTimes()
        self.by_arrival = 0  # iterations that were timed by the arrival of their lines

    def add(self, line: Line) -> None:
        """Take one valid line into account, in the order in which they were written."""
        self.latest = line, self._seconds(line)
        attempt = self.attempts.setdefault(line.get("attempt", 1), _Attempt())
        kind, iteration = line["kind"], line.get("iteration")
        if kind == protocol.CONTEXT:
            self.context = _values(line)
        elif kind == protocol.RESULT:
            self.result = _values(line)
        elif not isinstance(iteration, int):
            return
        elif kind == protocol.METRIC:
            fresh = attempt.first is None
            self.by_arrival += _measure(attempt, line, iteration, _MOST - self.by_arrival)
            if not fresh:
                self.rank_times.add(line)
            self._forget_repeated(attempt, iteration if attempt.first is None else attempt.first)
            self._add_scalars(self.series, line)
        elif kind == protocol.EVALUATION:
            attempt.disturbed |= {iteration, iteration + 1}
            self._forget_repeated(attempt, iteration)
            self._add_scalars(self.evaluations, line)
        elif kind == protocol.CHECKPOINT:
            attempt.disturbed |= {iteration, iteration + 1}

    def _forget_repeated(self, attempt: _Attempt, first: int) -> None:
        """Forget scalars of earlier attempts that *attempt* repeats, at its first scalar, of iteration *first*."""
        if attempt.has_scalars:
            return
        attempt.has_scalars = True
        for points in (*self.series.values(), *self.evaluations.values()):
            while points and points[-1].iteration >= first:
                points.pop()

    def _seconds(self, line: Line) -> float:
        """Seconds since the first line; Unix time, which may be set meanwhile, counts only between two attempts."""
        if self.latest is None:
            return 0.0
        before, seconds = self.latest
        same = before.get("attempt", 1) == line.get("attempt", 1)
        return seconds + max(seconds_between(before, line) if same else line["t"] - before["t"], 0.0)

    def _add_scalars(self, into: dict[str, list[Point]], line: Line) -> None:
        scalars = {key: float(value) for key, value in line.items() if key not in _NON_SCALARS and is_number(value)}
        self.not_finite = (self.not_finite | {name for name, value in line.items() if value is None}) - scalars.keys()
        for name, value in scalars.items():
            into.setdefault(name, []).append(Point(line["iteration"], self.latest[1] if self.latest else 0.0, value))

    def training(self) -> Training:
        """What all lines together say."""
        attempts = [attempt for attempt in self.attempts.values() if attempt.first is not None]
        reported = sum(len(window.seconds) for attempt in attempts for window in attempt.windows)
        reported += sum(attempt.beyond for attempt in attempts)
        rates, unrated = _rates(attempts)
        return Training(
            rates=rates,
            reported=reported,
            context=self.context,
            result=self.result,
            series=self.series,
            evaluations=self.evaluations,
            not_finite=self.not_finite,
            input_wait=self.rank_times.input_wait(),
            rank_seconds=self.rank_times.rank_seconds(),
            unrated=unrated,
        )


def _measure(attempt: _Attempt, line: Line, iteration: int, room: int) -> int:
    """Add the times that *line* reports of the iterations up to *iteration*, or else those since the line before.

    The latter are at most *room*. Their number is returned. A line that repeats an iteration, as a progress bar or
    another rank does, adds none: the iteration had ended with its first line.
    """
    seconds = line.get("seconds")
    if attempt.furthest and (iteration > attempt.furthest[1] or (iteration == attempt.furthest[1] and not seconds)):
        attempt.before = attempt.furthest  # what went back was a late repetition, not a counter that began anew
    if attempt.before and iteration == attempt.before[1]:
        return 0
    attempt.furthest = attempt.before if attempt.before and iteration < attempt.before[1] else None
    if seconds:
        window = _Window(iteration - len(seconds) + 1, list(seconds), by_arrival=False)
    elif attempt.before and 0 < (count := iteration - attempt.before[1]) <= _MAX_WINDOW:
        lasted = seconds_between(attempt.before[0], line)
        attempt.beyond += count if count > room else 0
        times = [] if lasted < 0 or count > room else [lasted / count] * count
        window = _Window(attempt.before[1] + 1, times, by_arrival=True)
    else:
        # The first line, and one after a counter that restarts or jumps, has no window.
        window = _Window(iteration, [], by_arrival=True)
    if attempt.first is None:
        attempt.first = window.first
    attempt.before = (line, iteration)
    if line.get("interrupted"):
        attempt.interrupted = len(window.seconds)
    elif window.seconds:
        attempt.windows.append(window)
    return len(window.seconds) if window.by_arrival else 0


def seconds_between(first: Line, second: Line) -> float:
    """The time from one line to the next of an attempt, by a clock that nobody sets and that stops in a sleep.

    Lines of programs that ran before agents recorded it have Unix times alone.
    """
    key = "uptime" if is_number(first.get("uptime")) and is_number(second.get("uptime")) else "t"
    return float(second[key] - first[key])


def _rates(attempts: list[_Attempt]) -> tuple[Rates | None, str]:
    """The rates of the iterations that count, and why others do not; None with fewer than two, and the reason."""
    reasons = ("warm-up", "next to an evaluation or checkpoint", "repeated after a restart", "in an interrupted window")
    excluded = dict.fromkeys(reasons, 0)
    counted: list[float] = []
    by_arrival = False
    for index, attempt in enumerate(attempts):
        later = [after.first for after in attempts[index + 1 :] if after.first is not None]
        windows, repeated = _before(attempt.windows, min(later, default=None))
        windows, warm_up = _without_warm_up(windows, sum(len(window.seconds) for window in attempt.windows))
        undisturbed, disturbed = _without_disturbed(windows, attempt.disturbed)
        for reason, count in zip(reasons, (warm_up, disturbed, repeated, _interrupted(attempt, later)), strict=True):
            excluded[reason] += count
        if attempt.beyond:
            excluded[_BEYOND] = excluded.get(_BEYOND, 0) + attempt.beyond
        counted += undisturbed
        by_arrival = by_arrival or any(window.by_arrival for window in attempt.windows)
    total = math.fsum(counted)  # exact: that of `sum` depends on the version of Python
    if len(counted) < 2:
        return None, ", ".join(f"{count} {reason}" for reason, count in excluded.items() if count)
    if total * _MAX_RATE <= len(counted):
        return None, f"{len(counted)} in less time than a clock can tell"
    median = statistics.median(counted)
    low, _, high = statistics.quantiles(counted, n=4, method="inclusive")
    rates = Rates(
        iterations=len(counted),
        seconds=total,
        per_second=len(counted) / total,
        median=median,
        iqr=(high - low) / median if median > 0 else None,
        by_arrival=by_arrival,
        excluded=excluded,
        iteration_seconds=tuple(counted),
    )
    return rates, ""


def _interrupted(attempt: _Attempt, later: list[int]) -> int:
    """The iterations in the interrupted window of an attempt that the next attempt does not repeat."""
    if not later or not attempt.windows or attempt.windows[-1].by_arrival:
        return attempt.interrupted
    return max(later[0] - attempt.windows[-1].last - 1, 0)


def _before(windows: list[_Window], limit: int | None) -> tuple[list[_Window], int]:
    """The windows up to iteration *limit*, and the number of iterations dropped."""
    if limit is None:
        return windows, 0
    remaining, dropped = [], 0
    for window in windows:
        count = min(max(limit - window.first, 0), len(window.seconds))
        dropped += len(window.seconds) - count
        if count:
            remaining.append(_Window(window.first, window.seconds[:count], window.by_arrival))
    return remaining, dropped


def _without_warm_up(windows: list[_Window], count: int) -> tuple[list[_Window], int]:
    """The windows after the warm-up of an attempt of *count* iterations, and the number of iterations dropped.

    Windows timed by arrival are dropped whole: their mean includes the warm-up.
    """
    to_drop = max(WARM_UP_ITERATIONS, math.ceil(count * WARM_UP_SHARE))
    remaining, dropped = [], 0
    for window in windows:
        left = max(to_drop - dropped, 0)
        count = len(window.seconds) if left and window.by_arrival else min(left, len(window.seconds))
        dropped += count
        if count < len(window.seconds):
            remaining.append(_Window(window.first + count, window.seconds[count:], window.by_arrival))
    return remaining, dropped


def _without_disturbed(windows: list[_Window], disturbed: set[int]) -> tuple[list[float], int]:
    counted: list[float] = []
    dropped = 0
    for window in windows:
        overlap = disturbed.intersection(range(window.first, window.last + 1))
        if overlap and window.by_arrival:
            dropped += len(window.seconds)
            continue
        dropped += len(overlap)
        counted += [second for at, second in enumerate(window.seconds, window.first) if at not in overlap]
    return counted, dropped


def _values(line: Line) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in protocol.LINE_KEYS}


def is_number(value: object) -> TypeGuard[float]:
    """Whether *value* is a finite number of reasonable size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_SCALAR
