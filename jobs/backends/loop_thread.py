"""Asynchronous work behind ordinary functions and iterators, also where a loop is running already (notebooks)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_BATCH = 500  # items handed over at once


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
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What *work* gives or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items, at most a batch of them ahead of whoever takes them."""
        queue: asyncio.Queue[T | None] = asyncio.Queue(_BATCH)
        feeding = asyncio.run_coroutine_threadsafe(_feed(items, queue), self._loop)
        try:
            while True:
                for item in self.call(_batch(queue)):
                    if item is None:
                        feeding.result()
                        return
                    yield item
        finally:
            feeding.cancel()


async def _feed(items: AsyncIterator[T], queue: asyncio.Queue[T | None]) -> None:
    try:
        async for item in items:
            await queue.put(item)
    finally:
        await queue.put(None)


async def _batch(queue: asyncio.Queue[T | None]) -> list[T | None]:
    found = [await queue.get()]
    while not queue.empty() and len(found) < _BATCH:
        found.append(queue.get_nowait())
    return found


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end in a loop of its own."""
    with LoopThread() as loop:
        return loop.call(work)
