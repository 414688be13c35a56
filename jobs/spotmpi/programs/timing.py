"""How long the iterations of this rank took, and how long it waited for their batches."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from spotmpi.programs.trainee import Clock


class Times(NamedTuple):
    """Seconds of each iteration in order, and how long the host waited for batches during all of them."""

    seconds: list[float]
    waited: float


class Stopwatch:
    """Collects the times of iterations until they are reported; reading a GPU's clock is left to that moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[Any, Any]] = []
        self._waited = 0.0
        self._start: Any = None

    def start(self) -> None:
        """The next iteration begins now."""
        self._start = self._clock.mark()

    def batch(self, batches: Iterator[Any]) -> Any:
        """The next batch."""
        began = time.perf_counter()
        found = next(batches)
        self._waited += time.perf_counter() - began
        return found

    def lap(self) -> None:
        """An iteration is done, and the next one begins."""
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
