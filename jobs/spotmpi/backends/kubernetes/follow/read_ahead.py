"""Several streams as one, in their order, the next ones being read while the first is still taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

AT_ONCE = 4  # streams that are read at the same time
_WAITING = 4  # items of each that may wait for their turn


async def in_order(streams: Iterable[AsyncIterator[T]]) -> AsyncIterator[T]:
    """All of the first stream, then all of the second, and so on; what a stream raises is raised in its place."""
    rest = iter(streams)
    reading: deque[_Reading[T]] = deque()
    try:
        while True:
            while len(reading) < AT_ONCE and (stream := next(rest, None)) is not None:
                reading.append(_Reading(stream))
            if not reading:
                return
            while (item := await reading[0].items.get()) is not None:
                yield item
            await reading.popleft().task
    finally:
        for each in reading:
            each.task.cancel()


class _Reading(Generic[T]):
    """One stream that is being read; None among its items is the end."""

    def __init__(self, stream: AsyncIterator[T]) -> None:
        self.items: asyncio.Queue[T | None] = asyncio.Queue(_WAITING)
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                await self.items.put(item)
        finally:
            await self.items.put(None)
