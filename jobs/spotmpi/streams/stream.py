"""The stream of a rank: its batches in order, prepared by the workers of the run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from spotmpi.agent import protocol
from spotmpi.agent.plan import WORKER
from spotmpi.programs.exits import end_job, leave
from spotmpi.streams import chunk, meter
from spotmpi.streams.chunk import Chunk, ChunkRequest, Skip
from spotmpi.streams.debug import Checks
from spotmpi.streams.engine import Engine, Task, TaskLocation
from spotmpi.streams.errors import SourceError, StreamError, StreamLost, at_user
from spotmpi.streams.figures import percent
from spotmpi.streams.meter import Counts, Meter, Report
from spotmpi.streams.order import FunctionSource, Order, Part, describe, digest, read_settings
from spotmpi.streams.source_list import Broadcast, compare_lists, share_list
from spotmpi.streams.sources import parts_of

DIGEST = 12  # characters of the digest of that list in reports
CHUNK_BYTES = 8 << 20  # a chunk has so many bytes, or takes so long: a task costs milliseconds
CHUNK_SECONDS = 0.25
MAX_CHUNK = 64  # batches
MAX_SKIPS = 100  # of a rank, after which the run ends
_yielded: list[Any] = []  # the batch that the last stream of this process has given to the user, for a message
_RANK_VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE"))


class Submit(Protocol):
    """How a stream has a function executed by a worker."""

    def __call__(
        self, title: str, function: Any, *args: Any, priority: int = 0, avoid: int | None = None, role: str = WORKER
    ) -> Task:
        """Submit one call to workers of this *role*, to one other than number *avoid* if there is one."""
        ...


class _Chunk(NamedTuple):
    """A chunk in flight."""

    requests: list[ChunkRequest]
    task: Task


class Stream:
    """The batches of rank *rank* of *size* from number *start* on, in order; each iteration over it begins there.

    *report*, if given, gets the values of the rank's reports of its figures.

    Attributes:
        position: the number from which a later stream continues after the current batch, to store in a checkpoint.
        number: the number of the current batch.
        count: how many batches it has yielded.
        finished: whether it has yielded all of them.
        skips: the batches that could not be prepared or postprocessed, with ``on_error = "skip"``.
        broadcast: how rank 0 gives texts to the other ranks; None outside a run.
        submit: how workers execute a function; calls that prepare batches have priorities up to 0.
    """

    def __init__(
        self, order: Order, submit: Submit, start: int, rank: int, size: int, report: Report | None = None
    ) -> None:
        self.order, self.settings = order, order.settings
        self.rank, self.size = rank, size
        self.numbers: Sequence[int] = order.numbers(start, rank, size)
        self.submit, self._report = submit, report
        self.position, self.number = start, -1
        self.count, self.finished = 0, False
        self.broadcast: Broadcast | None = None
        self._begun = False
        self._later: list[Stream] = []  # those that continue from another position
        self.skips: list[Skip] = []
        self._in_flight: deque[_Chunk] = deque()
        self._meter = Meter(rank, size, self.settings, report)
        self._checks = Checks(self.settings, self._recompute)

    @property
    def waited(self) -> float:
        """Seconds for which this rank has waited for batches."""
        return self._meter.waited

    def resume(self, position: int) -> Stream:
        """The same stream from another position, such as that of a checkpoint."""
        later = Stream(self.order, self.submit, position, self.rank, self.size, self._report)
        self._later.append(later)
        return later

    @property
    def used(self) -> bool:
        """Whether its batches, or those from a later position on, have been iterated over, or there are none."""
        return self._begun or not len(self) or any(each.used for each in self._later)

    def report_empty(self) -> None:
        """Report it if there is no batch to take, as where a checkpoint of the end is resumed."""
        if not len(self):
            self._meter.report(Counts(), force=True)

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
        self.count, self.finished, self._begun = 0, False, True
        self._meter.begin()
        numbers, length = iter(self.numbers), 1
        self._in_flight = in_flight = deque[_Chunk]()
        try:
            while True:
                while len(in_flight) < self.settings.prefetch and (own := list(islice(numbers, length))):
                    in_flight.append(self._request(own))
                if not in_flight:
                    self._finish()
                    return
                result = self._result(in_flight)
                length = chunk_length(result, length)
                for self.number, batch in result.batches:
                    self.position = self.number - self.rank + self.size
                    self.count += 1
                    _yielded[:] = [batch]
                    yield batch
        finally:
            if self.count and not self.finished:  # the loop was left early
                self._meter.report(self._counts(len(in_flight)), force=True)
            self._checks.cancel()
            for each in in_flight:
                each.task.cancel()

    def _request(self, numbers: list[int]) -> _Chunk:
        requests = [chunk.request(self.order, number) for number in numbers]
        title = f"batch {numbers[0]}"
        return _Chunk(requests, self.submit(title, chunk.prepare, self.settings, requests, priority=-numbers[0]))

    def _recompute(self, request: ChunkRequest, worker: int) -> Task:
        """The batch of *request* again, by a worker other than *worker*."""
        title = f"batch {request.number} again"
        return self.submit(title, chunk.prepare, self.settings, [request], priority=-request.number, avoid=worker)

    def _result(self, in_flight: deque[_Chunk]) -> Chunk:
        """The next chunk, which is in flight no more."""
        requests, task = in_flight[0]
        number, _, slices = requests[0].choices[0]
        result = self.receive(task, number, describe(slices))
        in_flight.popleft()
        if in_flight:
            in_flight[0].task.fetch()  # while the rank works with this one
        if self.settings.debug:
            self._checks.begin(result, requests, first=self.count == 0)
        # The first report tells the agent that the stream is used.
        self._meter.report(self._counts(len(in_flight)), force=self.count == 0)
        return result

    def receive(self, task: Task, number: int, rows: str, role: str = WORKER) -> Chunk:
        """The chunk of a task of workers of this *role*, which begins with batch *number*.

        Counts the wait and the batches that are skipped.
        """
        begin, in_flight = time.perf_counter(), len(self._in_flight)

        def on_wait(place: TaskLocation | None) -> None:
            waited = time.perf_counter() - begin
            preparing = min(place.batch[2], waited) if place and place.batch else 0.0
            pending = _pending(number, rows, place, waited)
            self._meter.report_pending(self._counts(in_flight), pending, waited, preparing, role)

        result: Chunk = task.result(on_wait)
        self._meter.add(result, time.perf_counter() - begin, role)
        for skip in result.skips:
            self.skips.append(skip)
            print(f"batch {skip.number} skipped ({skip.rows}): {skip.error}", file=sys.stderr, flush=True)
        if len(self.skips) > MAX_SKIPS:
            raise StreamError(
                f"rank {self.rank} skipped more than {MAX_SKIPS} batches; the last error: {self.skips[-1].error}"
            )
        return result

    def _counts(self, in_flight: int) -> Counts:
        return Counts(self.count, in_flight, len(self.skips))

    def _finish(self) -> None:
        _yielded.clear()
        self._checks.finish()
        self.finished = True
        self._meter.report(self._counts(0), force=True)
        if self.rank == 0:
            print(waiting_share(self.waited, self._meter.seconds), file=sys.stderr, flush=True)


def _pending(number: int, rows: str, place: TaskLocation | None, waited: float) -> dict[str, Any]:
    """What a rank waits for: the batch that its worker is at, else the first one of the chunk."""
    if place is None or place.batch is None:
        worker = None if place is None else str(place.worker)
        return {"batch": number, "rows": rows, "worker": worker, "seconds": round(waited, 1)}
    current, rows, seconds = place.batch
    return {"batch": current, "rows": rows, "worker": str(place.worker), "seconds": round(seconds, 1)}


def waiting_share(waited: float, seconds: float) -> str:
    """How long rank 0 has waited for batches."""
    share = waited / seconds if seconds else 0.0
    return f"rank 0 waited {waited:.1f} s of {seconds:.1f} s ({percent(share)}) for batches"


def chunk_length(result: Chunk, former: int) -> int:
    """How many batches the next chunks have, by the bytes and the time of one that is here."""
    count = max(1, len(result.batches))
    size, seconds = result.size / count, result.seconds / count
    by_size = CHUNK_BYTES / size if size else MAX_CHUNK
    by_time = CHUNK_SECONDS / seconds if seconds else MAX_CHUNK
    return max(1, min(MAX_CHUNK, 4 * former, round(min(by_size, by_time))))


def stream(
    start: int = 0, rank: int | None = None, size: int | None = None, source: FunctionSource | None = None
) -> Stream:
    """The stream of this process in a run with the table ``[stream]``, from batch number *start* on.

    Rank and number of ranks are those of the launcher, mpirun or torchrun, unless they are arguments. A program that
    loads its own data passes it as *source*; of the table, only prefetch, workers and errors then apply.

    Raises:
        StreamError: the run has no stream, or its source is empty or has changed since the run began.
        StreamLost: the scheduler does not answer.
    """
    text = os.environ.get(protocol.ENV_STREAM)
    if text is None:
        raise StreamError("this process has no stream: start it with `spotmpi run` and a spec with the table [stream]")
    sys.excepthook = _end_run
    settings = read_settings(text)
    engine = Engine(os.environ[protocol.ENV_POOL], os.environ[protocol.ENV_POOL_TLS], settings.roles)
    atexit.register(engine.close)
    own_rank, own_size = _world()
    rank = own_rank if rank is None else rank
    path = Path(os.environ[protocol.ENV_STREAM_FOLDER], protocol.STREAM_SOURCE)
    if source:
        parts, order = source.parts, source.order(settings)
        compare_lists(path, parts[0].name, rank, engine, parts)
    else:

        def list_parts(record: Sequence[Part]) -> list[Part]:
            return [Part(*part) for part in engine.submit("source", parts_of, settings, record).result()]

        parts = share_list(path, settings.source, rank, engine, list_parts)
        order = Order(parts, settings)
    report = functools.partial(_print, os.getpid(), engine if rank == 0 else None, digest(parts)[:DIGEST])
    result = Stream(order, engine.submit, start, rank, own_size if size is None else size, report)
    result.broadcast = engine
    result.report_empty()
    return result


def _print(process: int, engine: Engine | None, source: str, report: dict[str, Any]) -> None:
    """Print a report of the rank with this *process* id, of which a forked one has a copy.

    With *engine* it has the numbers of the workers that are connected, which may be changed.
    """
    if os.getpid() != process:
        return
    if engine:
        with contextlib.suppress(Exception):  # the wait for a batch has the failure
            counts = Counter(meter.COUNTS[member.role] for member in engine.workers())
            report = {**report, **{key: count for key, count in counts.items() if key in report}}
    print(protocol.encode(protocol.STREAM, source=source, **report), flush=True)


def _world() -> tuple[int, int]:
    """The rank of this process and the number of ranks, by the launcher's variables."""
    for rank, size in _RANK_VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _end_run(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nobody has handled; one of the stream also ends the run, without waiting for other ranks."""
    if isinstance(error, StreamError):
        reason, _, of_user = str(error).partition("\n")
        if of_user:
            print(of_user, file=sys.stderr)
        end_job(reason)
    if isinstance(error, StreamLost | SourceError):
        print(f"{kind.__name__}: {error}", file=sys.stderr)  # agents find the reason of a rank's end in such a line
        leave(protocol.INTERRUPTED if isinstance(error, StreamLost) else protocol.FAILED)
    hint = chunk.missing_key(error, _yielded[0]) if _yielded else ""
    if hint:
        print(f"{''.join(traceback.format_exception(at_user(error))).rstrip()}{hint}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, at_user(error), error.__traceback__)
