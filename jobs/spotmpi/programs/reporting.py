"""Times and reports of a running program: protocol lines on stdout and TensorBoard event files, both from rank 0."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from spotmpi.agent import protocol
from spotmpi.agent.files import error_text


class IterationClock(Protocol):
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

    def __init__(self, clock: IterationClock) -> None:
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

    def collect(self) -> Times:
        """The times since this was last called."""
        seconds = [self._clock.seconds(start, end) for start, end in self._marks]
        times = Times(seconds, self._waited)
        self._marks, self._waited = [], 0.0
        return times


class Reporter:
    """Reports what happens; does nothing on ranks other than 0, so that every rank can call it."""

    def __init__(self, rank: int, tensorboard: Path | None = None) -> None:
        self._enabled = rank == 0
        self._folder = tensorboard if self._enabled else None
        self._events: Any = None
        self._warned = False

    def context(self, **values: Any) -> None:
        """Report once at the start: the program, its data, and where it runs."""
        self._emit(protocol.CONTEXT, **values)

    def resumed(self, iteration: int, path: Path) -> None:
        """Report that training resumes from a checkpoint."""
        self._emit(protocol.RESUMED, iteration=iteration, path=str(path))

    def metric(
        self,
        iteration: int,
        epoch: float,
        seconds: list[float],
        scalars: Mapping[str, float],
        waited: float | None = None,
        ranks: Sequence[Sequence[float]] = (),
    ) -> None:
        """Report scalars after *iteration*; *seconds* are those of each iteration since the last such line.

        *waited* is the part of them that was spent waiting for batches, *ranks* the same seconds of every rank.
        """
        timed: dict[str, Any] = {"seconds": [round(second, 6) for second in seconds]}
        timed |= {} if waited is None else {"waited": round(waited, 6)}
        timed |= {"ranks": protocol.pack(ranks)} if self._enabled and self._fits(ranks) else {}
        self._emit(protocol.METRIC, iteration=iteration, time=time.time(), epoch=epoch, **timed, **scalars)
        rate = {"iterations_per_second": len(seconds) / sum(seconds)} if sum(seconds) > 0 else {}
        self._write_events("training", iteration, {**scalars, **rate})

    def _fits(self, ranks: Sequence[Sequence[float]]) -> bool:
        """Whether there are times of ranks that a line has room for."""
        size = sum(map(len, ranks)) * 4 * 4 // 3  # float32 in base64
        if size > protocol.MAX_REPORT // 2 and not self._warned:
            self._warned = True
            self.warn("the times of each rank are left out: too many for one report; use a smaller --report-every")
        return len(ranks) > 1 and size <= protocol.MAX_REPORT // 2

    def partial_metric(self, iteration: int, epoch: float, seconds: list[float]) -> None:
        """Report the end at *iteration*, before the interval is complete, since the machine goes away."""
        timed = [round(second, 6) for second in seconds]
        self._emit(protocol.METRIC, iteration=iteration, time=time.time(), epoch=epoch, seconds=timed, interrupted=True)

    def evaluation(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Report the evaluation of the model after *iteration*."""
        self._emit(protocol.EVALUATION, iteration=iteration, time=time.time(), **scalars)
        self._write_events("evaluation", iteration, scalars)

    def checkpoint(self, iteration: int, path: Path, seconds: float, reason: str) -> None:
        """Report a complete checkpoint."""
        self._emit(protocol.CHECKPOINT, iteration=iteration, path=str(path), seconds=round(seconds, 6), reason=reason)

    def result(self, iteration: int, scalars: Mapping[str, Any]) -> None:
        """Report once at the end."""
        self._emit(protocol.RESULT, iteration=iteration, **scalars)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        if self._enabled:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._events:
            self._events.close()

    def _emit(self, kind: str, **values: Any) -> None:
        if self._enabled:
            sys.stdout.write(protocol.encode(kind, **values) + "\n")  # at once: a checkpoint is reported by a thread
            sys.stdout.flush()

    def _write_events(self, group: str, iteration: int, scalars: Mapping[str, float]) -> None:
        if not self._folder:
            return
        try:
            if not self._events:
                self._events = _event_file(self._folder, iteration)
            for name, value in scalars.items():
                self._events.add_scalar(f"{group}/{name}", value, iteration)
        except OSError as problem:
            self._folder = None
            self.warn(f"TensorBoard events are no longer written: {error_text(problem)}")


def _event_file(folder: Path, iteration: int) -> Any:
    """TensorBoard's writer of a new event file, from this iteration on."""
    import multiprocessing  # delays the start of programs that write no events

    from tensorboardX import SummaryWriter, event_file_writer  # other programs may report without it

    # Its queue would start a process and name its semaphores, by Python's default since 3.14, and a rank that is killed
    # would leave these in the machine's /dev/shm.
    vars(event_file_writer)["multiprocessing"] = multiprocessing.get_context("fork")
    return SummaryWriter(str(folder), purge_step=iteration)
