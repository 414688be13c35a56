"""Batches for one rank, in order, prepared by its loader processes or, equally, by workers of the run's stream.

A loader process answers requests on stdin by batches on stdout, as pickles, until stdin ends with its rank.
"""

import contextlib
import functools
import importlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.options import LOADER, TrainingOptions
from spotmpi.programs.sampling import Batching, Dataset, Order, sample_generator
from spotmpi.programs.world import World

_PREFETCH = 2  # batches that each process prepares in advance
# It imports from where its rank does: PYTHONPATH can't have folders with a colon in their name.
_MAIN = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from spotmpi.programs.loader import main
main()
"""


class Loader:
    """The batches of *rank*: its share of every global batch, in its parts.

    They are the same for any number of *processes*; 0 prepares them in this process. Close it after use.
    """

    def __init__(self, dataset: Dataset, order: Order, batching: Batching, rank: int, processes: int = 0) -> None:
        self._dataset = dataset
        self._order = order
        self._batching = batching
        self._rank = rank
        self._processes = [_LoaderProcess(dataset, order.seed, number) for number in range(processes)]

    def batches(self, position: int) -> Iterator[Any]:
        """Endless batches, from the iteration whose global batch starts at *position*; call it once."""
        starts = (position + number * self._batching.global_batch for number in count())
        requests = (self._samples(start, part) for start in starts for part in range(self._batching.parts))
        return self._from_processes(requests) if self._processes else self._load_here(requests)

    def close(self) -> None:
        """Kill the loader processes."""
        for process in self._processes:
            process.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def _samples(self, position: int, part: int) -> list[tuple[int, int]]:
        batching = self._batching
        return self._order.slice(
            position + self._rank * batching.per_rank + part * batching.per_part, batching.per_part
        )

    def _load_here(self, requests: Iterator[list[tuple[int, int]]]) -> Iterator[Any]:
        for samples in requests:
            yield load(self._dataset, self._order.seed, samples)

    def _from_processes(self, requests: Iterator[list[tuple[int, int]]]) -> Iterator[Any]:
        for _ in range(_PREFETCH):
            for process in self._processes:
                process.request(next(requests))
        while True:
            for process in self._processes:
                batch = process.result()
                process.request(next(requests))
                yield batch


def load(dataset: Dataset, seed: int, samples: list[tuple[int, int]]) -> Any:
    """The batch of *samples*, given as (epoch, index)."""
    return dataset.batch([dataset.sample(index, sample_generator(seed, epoch, index)) for epoch, index in samples])


class _LoaderProcess:
    """One loader process: a fresh interpreter, since forking a rank that has MPI or CUDA open is not safe."""

    def __init__(self, dataset: Dataset, seed: int, number: int) -> None:
        self._number = number
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()  # of as many as are requested
        with _signals_blocked():
            # A loader process is not a rank: with the launcher's variables, libraries would take it for one.
            launcher = ("OMPI_", "PMIX_", "PRTE_", "PMI_")
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith(launcher)},
            )
        self.request([path or str(Path.cwd()) for path in sys.path])
        self.request((dataset, seed))
        threading.Thread(target=self._receive, daemon=True).start()

    def request(self, request: Any) -> None:
        assert self._process.stdin is not None
        # A process that has ended is reported by `result`.
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(request, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def result(self) -> Any:
        kind, value = self._answers.get()
        if kind == "gone":
            code = self._process.wait()
            raise Failed(
                f"loader process {self._number} (pid {self._process.pid}) exited with {code}; "
                "it may have run out of memory"
            )
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
def _signals_blocked() -> Iterator[None]:
    """Processes that are started meanwhile ignore these signals: the rank handles them, and needs its loader."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Run a loader process."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not get between the pickles
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(sys.stdin.buffer, answers)
    os._exit(0)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    dataset, seed = pickle.load(requests)
    while True:
        samples = pickle.load(requests)
        try:
            answer: tuple[str, Any] = ("batch", load(dataset, seed, samples))
        except Exception as problem:
            problem.add_note(f"in a loader process:\n{traceback.format_exc()}")
            answer = ("error", problem)
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


class DataSource(NamedTuple):
    """How another process loads the training data: a function (``module:function``) and its arguments, JSON values."""

    function: str
    arguments: dict[str, Any]


class Input(NamedTuple):
    """The training data, and how its batches are divided between the ranks."""

    dataset: Dataset
    batching: Batching
    source: DataSource | None = None


@contextmanager
def rank_batches(
    data: Input, options: TrainingOptions, world: World, position: int, count: int
) -> Iterator[Iterator[Any]]:
    """The batches of this rank in *count* iterations, from that whose global batch starts at sample *position*."""
    if options.batches == LOADER:
        order = Order(options.seed, len(data.dataset))
        with Loader(data.dataset, order, data.batching, world.rank, options.loader_processes) as loader:
            yield loader.batches(position)
    else:
        batches = _streamed(data, options, world, position, count)
        yield batches
        next(batches, None)  # after the last one the stream is at its end


def _streamed(data: Input, options: TrainingOptions, world: World, position: int, count: int) -> Iterator[Any]:
    """The same batches from workers: batch *k* of the stream is the *k*-th share of a rank since the first sample."""
    import spotmpi

    if data.source is None:
        raise Fatal("--batches stream: this program does not say how workers load its data; use --batches loader")
    share = data.batching.per_rank
    start, offset = divmod(position, share)  # after a resume with another number of ranks the shares are shifted
    fingerprint = data.dataset.fingerprint()
    source = spotmpi.FunctionSource(
        "spotmpi.programs.loader:prepare",
        {
            "source": list(data.source),
            "fingerprint": fingerprint,
            "seed": options.seed,
            "offset": offset,
            "share": share,
        },
        start + max(0, count) * world.size,
        (f"{data.source.function} {json.dumps(data.source.arguments)}", len(data.dataset), fingerprint),
    )
    return iter(spotmpi.stream(start, world.rank, world.size, source))


def prepare(number: int, source: list[Any], fingerprint: str, seed: int, offset: int, share: int) -> Any:
    """Batch *number* of the stream, in a worker: *share* samples, decoded and augmented as a rank's loader does."""
    import spotmpi

    try:
        dataset = _load(json.dumps(source), fingerprint)
        return load(dataset, seed, Order(seed, len(dataset)).slice(offset + number * share, share))
    except Failed as error:
        raise spotmpi.SourceError(str(error)) from error


@functools.lru_cache(maxsize=1)  # each worker loads the data once
def _load(source: str, fingerprint: str) -> Dataset:
    name, arguments = json.loads(source)
    module, _, function = name.partition(":")
    dataset: Dataset = getattr(importlib.import_module(module), function)(**arguments)
    if dataset.fingerprint() != fingerprint:
        import spotmpi

        raise spotmpi.StreamError(
            f"the data of {name} is another on this worker: fingerprint {dataset.fingerprint()}, in the ranks "
            f"{fingerprint}; give workers the same data and the same image"
        )
    return dataset
