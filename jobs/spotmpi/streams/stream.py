"""The stream of a rank: its batches in order, prepared by the workers of the run."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically
from spotmpi.programs.exits import leave
from spotmpi.streams import chunk
from spotmpi.streams.chunk import Chunk, Skip
from spotmpi.streams.engine import Engine, Task
from spotmpi.streams.errors import SourceError, StreamError, StreamLost
from spotmpi.streams.order import Order, Part, Settings, differences, digest, read_settings

SOURCE = "source.json"  # in the folder of the stream: the source list of the run
CHUNK_BYTES = 4 << 20  # a chunk has so many bytes, or takes so long: a task costs milliseconds
CHUNK_SECONDS = 0.25
MAX_CHUNK = 64  # batches
HIGH_SHARE = 0.2  # of its time that a rank waits, above which more workers may help
MAX_SKIPS = 100  # of a rank, after which the run ends
_RANK_VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE"))


class Submit(Protocol):
    """How a stream has a function executed by a worker."""

    def __call__(self, title: str, function: Any, *args: Any, priority: int = 0) -> Task:
        """Submit one call."""
        ...


class Stream:
    """The batches of rank *rank* of *size* from number *start* on, in order; iterating again begins anew.

    Attributes:
        position: the number from which a later stream goes on after the current batch: for a checkpoint.
        number: that of the current batch.
        count: how many batches it has given.
        finished: whether it has given all of them.
        skips: the batches that could not be prepared, with ``on_error = "skip"``.
        waited: seconds for which this rank has waited for batches.
    """

    def __init__(self, order: Order, submit: Submit, start: int, rank: int, size: int) -> None:
        self.order, self.settings = order, order.settings
        self.rank, self.size = rank, size
        self.numbers: Sequence[int] = order.numbers(start, rank, size)
        self._submit = submit
        self.position, self.number = start, -1
        self.count, self.finished = 0, False
        self.skips: list[Skip] = []
        self.waited = 0.0

    def resume(self, position: int) -> Stream:
        """The same stream from another position on, such as that of a checkpoint."""
        return Stream(self.order, self._submit, position, self.rank, self.size)

    def __len__(self) -> int:
        """The number of batches of this rank, those that are skipped included."""
        return len(self.numbers)

    def __iter__(self) -> Iterator[Any]:
        """The prepared batches.

        Raises:
            StreamError: a batch cannot be prepared, or the source was changed.
            SourceError: the storage of the source does not answer.
            StreamLost: the scheduler is gone.
        """
        self.count, self.finished, self.waited = 0, False, 0.0
        begin = time.perf_counter()
        numbers, length = iter(self.numbers), 1
        under_way: deque[Task] = deque()
        try:
            while True:
                while len(under_way) < self.settings.window and (own := list(islice(numbers, length))):
                    under_way.append(self._request(own))
                if not under_way:
                    self.finished = True
                    if self.rank == 0:
                        print(waiting_share(self.waited, time.perf_counter() - begin), file=sys.stderr, flush=True)
                    return
                result = self._result(under_way.popleft())
                length = chunk_length(result, length)
                for self.number, batch in result.batches:
                    self.position = self.number - self.rank + self.size
                    self.count += 1
                    yield batch
        finally:
            for task in under_way:
                task.cancel()

    def _request(self, numbers: list[int]) -> Task:
        requests = [chunk.request(self.order, number) for number in numbers]
        title = f"batch {numbers[0]}"
        return self._submit(title, chunk.prepare, self.settings, requests, priority=-numbers[0])

    def _result(self, task: Task) -> Chunk:
        begin = time.perf_counter()
        result: Chunk = task.result()
        self.waited += time.perf_counter() - begin
        for skip in result.skips:
            self.skips.append(skip)
            print(f"batch {skip.number} skipped ({skip.rows}): {skip.error}", file=sys.stderr, flush=True)
        if len(self.skips) > MAX_SKIPS:
            raise StreamError(f"rank {self.rank} skipped more than {MAX_SKIPS} batches, at last {self.skips[-1].error}")
        return result


def waiting_share(waited: float, seconds: float) -> str:
    """How long rank 0 has waited for batches, and what would help."""
    share = waited / seconds if seconds else 0.0
    text = f"rank 0 waited {waited:.1f} s of {seconds:.1f} s ({share:.0%}) for batches"
    return text + ("; more workers (stream.workers.nodes) may help" if share > HIGH_SHARE else "")


def chunk_length(result: Chunk, former: int) -> int:
    """How many batches the next chunks have, by the bytes and the time of one that is here."""
    count = max(1, len(result.batches))
    size, seconds = result.size / count, result.seconds / count
    by_size = CHUNK_BYTES / size if size else MAX_CHUNK
    by_time = CHUNK_SECONDS / seconds if seconds else MAX_CHUNK
    return max(1, min(MAX_CHUNK, 4 * former, round(min(by_size, by_time))))


def stream(start: int = 0, rank: int | None = None, size: int | None = None) -> Stream:
    """The stream of this process in a run with the table ``[stream]``, from batch number *start* on.

    Rank and number of ranks are those of the launcher, mpirun or torchrun, unless they are arguments.

    Raises:
        StreamError: not in such a run, an empty source, or one that has changed since the run began.
        StreamLost: the scheduler does not answer.
    """
    text = os.environ.get(protocol.ENV_STREAM)
    if text is None:
        raise StreamError("this process has no stream: start it with `spotmpi run` and a spec with the table [stream]")
    sys.excepthook = _end_run
    settings = read_settings(text)
    engine = Engine(os.environ[protocol.ENV_POOL], os.environ[protocol.ENV_POOL_TLS])
    atexit.register(engine.close)
    parts = [Part(*part) for part in engine.submit("source", chunk.list_source, settings).result()]
    check_source(Path(os.environ[protocol.ENV_STREAM_FOLDER], SOURCE), settings, parts)
    own_rank, own_size = _world()
    return Stream(
        Order(parts, settings),
        engine.submit,
        start,
        own_rank if rank is None else rank,
        own_size if size is None else size,
    )


def check_source(path: Path, settings: Settings, parts: Sequence[Part]) -> None:
    """Record the source list of a run in the file *path*, or compare it with the one that is recorded.

    Raises:
        StreamError: the two differ: batches would be a mixture.
    """
    try:
        recorded = [Part(*part) for part in json.loads(path.read_text())["parts"]]
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"source": settings.source, "digest": digest(parts), "parts": [list(part) for part in parts]}
        write_atomically(path, json.dumps(record) + "\n")
        return
    if digest(recorded) != digest(parts):
        raise StreamError(
            f"the source {settings.source} is not what it was when the run began: {differences(recorded, parts)}; "
            "restore it, or start a new run"
        )


def _world() -> tuple[int, int]:
    """The rank of this process and the number of ranks, by the launcher's variables."""
    for rank, size in _RANK_VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _end_run(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nobody has handled; one of the stream also ends the run, without waiting for other ranks."""
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, StreamError):
        print(protocol.encode(protocol.FATAL, reason=str(error).partition("\n")[0]), flush=True)
        leave(protocol.NOT_RETRYABLE)
    if isinstance(error, StreamLost):
        leave(protocol.INTERRUPTED)
    if isinstance(error, SourceError):
        leave(protocol.FAILED)
