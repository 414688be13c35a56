"""Asynchronous work behind ordinary functions and iterators, also where an event loop runs already (notebooks).

Each call has an event loop of its own, in a thread (`anyio.from_thread.start_blocking_portal`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")

_AHEAD = 4  # batches that may wait for the consumer
_BATCH = 500  # items that are handed over together, where so many wait
_CANCEL_TIMEOUT = 5.0  # seconds for cancelled work to clean up


def call(work: Coroutine[Any, Any, T]) -> T:
    """What *work* returns or raises."""
    with start_blocking_portal(name="spotmpi cluster") as portal:
        task = portal.call(_start, work)
        try:
            result: T = portal.call(_result, task)
            return result
        finally:
            portal.call(_cancel, task)


@contextmanager
def serve(service: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """The value of *service*, which keeps running in the background until the context ends."""
    with start_blocking_portal(name="spotmpi cluster") as portal, portal.wrap_async_context_manager(service) as value:
        yield value


def iterate(batches: AsyncIterator[Sequence[T]]) -> Generator[list[T]]:
    """The items in batches, read a few batches ahead of the consumer; closing the iterator cancels the work."""
    with start_blocking_portal(name="spotmpi cluster") as portal:
        yield from _iterate(portal, batches)


def _iterate(portal: BlockingPortal, batches: AsyncIterator[Sequence[T]]) -> Iterator[list[T]]:
    queue: asyncio.Queue[Sequence[T] | None] = asyncio.Queue(_AHEAD)
    reader = portal.call(_start, read_into(queue, batches))
    try:
        while batch := portal.call(_next_batch, queue):
            yield batch
        portal.call(_result, reader)
    finally:
        portal.call(_cancel, reader)


async def _result(task: asyncio.Task[T]) -> T:
    return await task


async def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """The task of *work*, one of asyncio's: a task of anyio's is cancelled again at each await of its clean-up."""
    return asyncio.create_task(work)


async def read_into(queue: asyncio.Queue[T | None], items: AsyncIterator[T]) -> None:
    """Put all *items* into a queue, then None, also where they end with an error, which is raised."""
    try:
        async for item in items:
            await queue.put(item)
    except asyncio.CancelledError:
        raise  # nobody consumes any more
    except BaseException:
        await queue.put(None)
        raise
    await queue.put(None)


async def _next_batch(queue: asyncio.Queue[Sequence[T] | None]) -> list[T]:
    """The items that wait, or the next that come; none at the end."""
    items: list[T] = []
    while not items or (len(items) < _BATCH and not queue.empty()):
        batch = await queue.get()
        if batch is None:
            queue.put_nowait(None)  # for the next call
            break
        items += batch
    return items


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)
    if task.done() and not task.cancelled():
        task.exception()  # or asyncio logs that nobody has looked at it
