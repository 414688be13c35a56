"""Asynchronous work behind ordinary functions and iterators, also where a loop is running already (notebooks)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_AHEAD = 4  # lists of items that may wait for whoever takes them
_LEAVE = 5.0  # seconds that work which nobody needs any more may take to end
_BATCH = 500  # items that are handed over at once, where so many wait


class LoopThread:
    """An event loop in a thread of its own, for as long as the context is open."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="spotmpi cluster", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        # What runs inside an asynchronous generator has to end before that can be closed.
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_LEAVE))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What *work* gives or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncIterator[Sequence[T]]) -> Iterator[list[T]]:
        """The items, some at a time, and a few of them ahead of whoever takes them."""
        queue: asyncio.Queue[Sequence[T] | None] = asyncio.Queue(_AHEAD)
        feeding = asyncio.run_coroutine_threadsafe(_feed(items, queue), self._loop)
        try:
            while found := self.call(_batch(queue)):
                yield found
            feeding.result()
        finally:
            feeding.cancel()


async def _feed(items: AsyncIterator[Sequence[T]], queue: asyncio.Queue[Sequence[T] | None]) -> None:
    try:
        async for some in items:
            await queue.put(some)
    except asyncio.CancelledError:
        raise  # nobody takes anything any more
    except BaseException:
        await queue.put(None)
        raise
    await queue.put(None)


async def _batch(queue: asyncio.Queue[Sequence[T] | None]) -> list[T]:
    """What is there, or the next that comes; nothing at the end."""
    found: list[T] = []
    while not found or (len(found) < _BATCH and not queue.empty()):
        some = await queue.get()
        if some is None:
            queue.put_nowait(None)  # to be found again by the next look
            break
        found += some
    return found


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end in a loop of its own."""
    with LoopThread() as loop:
        return loop.call(work)
