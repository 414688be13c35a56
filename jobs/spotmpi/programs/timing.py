"""Times the iterations of a rank, on the clock of its device, and its waits for batches."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Clock(Protocol):
    """Marks in time, taken cheaply and read later."""

    def mark(self) -> Any:
        """Now, in the order of the work handed to the device."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; waits until both have passed."""


class WallClock:
    """The clock of a device that works while the program waits for it."""

    def mark(self) -> float:
        """Seconds from an arbitrary start."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start


class Times(NamedTuple):
    """Seconds of each iteration in order, and the seconds that the host waited for batches during all of them."""

    seconds: list[float]
    waited: float


class Stopwatch:
    """Collects the times of iterations until they are reported; the clock of a GPU is read only then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[Any, Any]] = []
        self._waited = 0.0
        self._start: Any = None

    def start(self) -> None:
        """Start the first iteration, after a pause."""
        self._start = self._clock.mark()

    def next_batch(self, batches: Iterator[Any]) -> Any:
        """The next batch."""
        start = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - start
        return batch

    def split(self) -> None:
        """End an iteration and start the next one."""
        end = self._clock.mark()
        self._marks.append((self._start, end))
        self._start = end

    @property
    def empty(self) -> bool:
        """Whether no iteration is waiting to be reported."""
        return not self._marks

    def take(self) -> Times:
        """The times since this was last called."""
        seconds = [self._clock.seconds(start, end) for start, end in self._marks]
        times = Times(seconds, self._waited)
        self._marks, self._waited = [], 0.0
        return times
