"""The calls of one `Pool.map`: how many of them are in flight at once, and their results in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from spotmpi.pools.calls import Call, is_count
from spotmpi.pools.engine import Engine
from spotmpi.pools.progress import ProgressBar

BUFFERSIZE = 256  # calls that are in flight at once, unless a pool has very many workers
BUFFER_BYTES = 256 << 20  # of their arguments and results, above which there are two for each worker
_MEMORY = 0.9  # weight of the results so far in the size that others are expected to have


class MapCalls:
    """Sends *calls* by *engine*, some at once, and gives their results in order.

    At most *buffersize* are in flight, or as many as memory allows: two for each worker until the first result shows
    how large they are. An error of *calls* itself, or of sending one, takes the place of the call.

    Raises:
        ValueError: *buffersize* is not a whole number, or less than 1.
    """

    def __init__(self, engine: Engine, calls: Iterator[Call], buffersize: int | None) -> None:
        if buffersize is not None and not is_count(buffersize):
            raise ValueError(
                f"buffersize = {buffersize!r}: a map has at least one call in flight, and a whole number of them"
            )
        self._engine, self._calls = engine, calls
        self._least = 2 * int(engine.connection.description["size"])
        self._limit = buffersize or max(BUFFERSIZE, 4 * self._least)
        self._is_fixed = buffersize is not None
        self._in_flight: deque[Call] = deque()
        self._refill = self._limit  # more are sent once no more than these are in flight
        self._expected: float | None = None  # bytes of a result
        self._progress = threading.Event()  # a call has ended
        self._send()

    def results(self, bar: ProgressBar | None) -> Iterator[Any]:
        """The results in order, as soon as available. The rest is cancelled when nobody takes them."""
        try:
            while self._in_flight:
                while not self._in_flight[0].done():
                    self._progress.wait()
                    self._progress.clear()
                    self._send()
                call = self._in_flight.popleft()
                self._send()
                try:
                    result = call.result()
                except BaseException:
                    del call  # the error's traceback has this frame, and the call has the error
                    raise
                if bar:
                    bar.advance()
                yield result
        finally:
            if bar:
                bar.end()
            while self._in_flight:
                self._in_flight.pop().cancel()

    def cancel(self) -> None:
        """Cancel the calls in flight, from any thread; one that waits for a result gets a CancelledError."""
        self._calls = iter(())
        for call in list(self._in_flight):
            call.cancel()

    def _send(self) -> None:
        """Send as many calls as may be in flight, once there is room for some."""
        if len(self._in_flight) > self._refill:
            return
        batch: list[Call] = []
        failed: list[Call] = []  # the last one, without this frame in its error's traceback
        call = None
        memory = sum(self._size(call) for call in self._in_flight)
        try:
            while self._may_send(len(self._in_flight) + len(batch), memory) and (call := next(self._calls, None)):
                call.add_done_callback(self._call_ended)
                batch.append(call)
                memory += self._size(call)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed.append(Call(""))
            failed[0].finish(error=error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
            self._calls = iter(())
        self._in_flight.extend(batch + failed)
        try:
            if batch:
                self._engine.submit(batch)
        except Exception as error:
            for call in batch:
                call.finish(error=error)
        if self._expected is not None:
            self._refill = len(self._in_flight) // 2
        # On Python 3.13 the frame of an iterable that raised leads back to this one (f_back), which would keep them.
        batch, failed, call = [], [], None

    def _may_send(self, count: int, memory: float) -> bool:
        if self._is_fixed or count < self._least:
            return count < self._limit
        return self._expected is not None and memory < BUFFER_BYTES and count < self._limit

    def _size(self, call: Call) -> float:
        return len(call.payload) + (call.received if call.done() else self._expected or 0.0)

    def _call_ended(self, call: Future[Any]) -> None:
        """Learn from a call that has ended; called by the engine's thread."""
        assert isinstance(call, Call)
        before = call.received if self._expected is None else self._expected
        self._expected = _MEMORY * before + (1 - _MEMORY) * call.received
        self._progress.set()
