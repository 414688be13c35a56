"""The way of results from a rank to their sink, in the order of their numbers: by workers if there is a postprocess.

Only the rank that has a number writes its results, whoever computed them, so they are acknowledged in one place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from spotmpi.agent.protocol import counted
from spotmpi.streams import chunk
from spotmpi.streams.chunk import Result, size_of
from spotmpi.streams.engine import Task
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import PARQUET, describe
from spotmpi.streams.results import encode
from spotmpi.streams.sinks import Sink
from spotmpi.streams.stream import CHUNK_BYTES, CHUNK_SECONDS, Stream, chunk_length

FIRST = 1  # the priority of a postprocess: before all that prepares further batches


class _Chunk(NamedTuple):
    first: Result
    task: Task


class Delivery:
    """Takes what the function *name* yields for the batches of *stream*, and has *sink* write it.

    Results go together as chunks, of about as many bytes and seconds as those of batches; at most ``prefetch`` of them
    are in flight. *timer* counts seconds.
    """

    def __init__(self, stream: Stream, name: str, sink: Sink, timer: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._name, self._sink, self._timer = stream, name, sink, timer
        self._settings = stream.settings
        self._role = self._settings.roles[-1]
        self._length = 1 if self._settings.postprocess else sink.most
        self._collected: list[Result] = []
        self._size, self._last = 0, timer()  # bytes collected, and when they were sent before
        self._in_flight: deque[_Chunk] = deque()
        self._written = 0  # batches

    def add(self, number: int, value: Any) -> None:
        """Take the result of batch *number*.

        Raises:
            StreamError: it cannot be postprocessed or written, or an earlier one could not.
        """
        order, now = self._stream.order, self._timer()
        self._collected.append(Result(number, order.seed(number), describe(order.slices(number)), value))
        self._size += size_of(value)
        is_late = now - self._last >= CHUNK_SECONDS
        if len(self._collected) >= self._length or self._size >= CHUNK_BYTES or is_late:
            self._send()
            self._last = now
        self._receive(self._settings.prefetch - 1)

    def finish(self) -> None:
        """Write all that was taken; raises as `add`."""
        self._send()
        self._receive(0)

    def cancel(self) -> None:
        """Forget what is in flight: it is computed again when the run continues."""
        while self._in_flight:
            self._in_flight.popleft().task.cancel()

    def _send(self) -> None:
        results, self._collected, self._size = self._collected, [], 0
        if not results:
            return
        if not self._settings.postprocess:
            write = self._settings.write or PARQUET
            self._write([(each.number, encode(write, self._name, each.number, each.value)) for each in results])
            return
        packed = chunk.pack(self._name, results)
        title = f"postprocess of batch {results[0].number}"
        task = self._stream.submit(title, chunk.postprocess, self._settings, packed, priority=FIRST, role=self._role)
        self._in_flight.append(_Chunk(results[0], task))

    def _receive(self, most: int) -> None:
        """Write what has arrived, and wait until at most so many chunks are in flight."""
        while self._in_flight and (len(self._in_flight) > most or self._in_flight[0].task.done()):
            first, task = self._in_flight[0]
            try:
                result = self._stream.receive(task, first.number, first.rows, self._role)
            except StreamError as error:
                cause, line, trace = str(error).partition("\n")
                written = counted(self._written, "batch", "batches")
                kept = f"the results of {written} are written, and a resumed run computes the others"
                raise StreamError(f"{cause}; {kept}{line}{trace}") from None
            self._in_flight.popleft()
            self._length = chunk_length(result, self._length)
            if self._in_flight:
                self._in_flight[0].task.fetch()
            self._write(result.batches)

    def _write(self, results: list[tuple[int, Any]]) -> None:
        self._sink.write(results)
        self._written += len(results)
