"""Batches for one rank, in order, prepared by as many processes as wanted."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from spotmpi.programs.batching import Batching
from spotmpi.programs.dataset import Dataset
from spotmpi.programs.ending import Failed
from spotmpi.programs.order import Order, sample_generator

_AHEAD = 2  # batches that each process prepares before they are asked for


class Loader:
    """The batches of *rank*: of every global batch it has the samples at its own places.

    What comes is the same for any number of *processes*; 0 prepares batches in this process. Close it after use.
    """

    def __init__(self, dataset: Dataset, order: Order, batching: Batching, rank: int, processes: int = 0) -> None:
        self._dataset = dataset
        self._order = order
        self._batching = batching
        self._rank = rank
        self._processes = [_Process(dataset, order.seed, number) for number in range(processes)]

    def batches(self, position: int) -> Iterator[Any]:
        """Batches without end, from the iteration whose global batch starts at *position*; call it once."""
        wanted = (self._samples(position + number * self._batching.in_all) for number in count())
        return self._from_processes(wanted) if self._processes else self._from_here(wanted)

    def close(self) -> None:
        """End the loader processes."""
        for process in self._processes:
            process.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def _samples(self, position: int) -> list[tuple[int, int]]:
        share = self._batching.per_rank
        return self._order.slice(position + self._rank * share, share)

    def _from_here(self, wanted: Iterator[list[tuple[int, int]]]) -> Iterator[Any]:
        for samples in wanted:
            yield load(self._dataset, self._order.seed, samples)

    def _from_processes(self, wanted: Iterator[list[tuple[int, int]]]) -> Iterator[Any]:
        for _ in range(_AHEAD):
            for process in self._processes:
                process.ask(next(wanted))
        while True:
            for process in self._processes:
                batch = process.answer()
                process.ask(next(wanted))
                yield batch


def load(dataset: Dataset, seed: int, samples: list[tuple[int, int]]) -> Any:
    """The batch of *samples*, given as (epoch, index)."""
    return dataset.batch([dataset.sample(index, sample_generator(seed, epoch, index)) for epoch, index in samples])


class _Process:
    """One loader process: a fresh interpreter, since forking a rank that has MPI or CUDA open is not safe."""

    def __init__(self, dataset: Dataset, seed: int, number: int) -> None:
        self._number = number
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=_AHEAD)
        with _notices_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spotmpi.programs.loading_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
            )
        self.ask((dataset, seed))
        threading.Thread(target=self._receive, daemon=True).start()

    def ask(self, request: Any) -> None:
        assert self._process.stdin is not None
        # A process that has ended says why, or that it is gone, through its answers.
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(request, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def answer(self) -> Any:
        kind, value = self._answers.get()
        if kind == "gone":
            code = self._process.wait()
            raise Failed(f"loader process {self._number} (pid {self._process.pid}) ended with {code}; memory short?")
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                self._answers.put(pickle.load(self._process.stdout))
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                self._answers.put(("gone", None))
                return


@contextlib.contextmanager
def _notices_blocked() -> Iterator[None]:
    """What is started meanwhile never gets a notice: it concerns the rank, which needs its loader until the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    # A loader process is no rank: with the launcher's variables it would look like one to a library that asks.
    launcher = ("OMPI_", "PMIX_", "PRTE_", "PMI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    return {**kept, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
