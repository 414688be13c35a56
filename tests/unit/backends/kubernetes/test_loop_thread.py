"""Asynchronous work behind ordinary iterators."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from spotmpi.backends.kubernetes.loop_thread import LoopThread


async def quiet_after(count: int) -> AsyncIterator[list[int]]:
    """As many numbers and then none, by way of a generator inside another, as a cluster's streams are."""

    async def inner() -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)

    async for number in inner():
        yield [number]


def test_whoever_leaves_while_nothing_comes_hears_nothing_of_what_is_closed_behind_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It works: their own exception alone. It fails: tracebacks of generators that run already."""
    with pytest.raises(ValueError, match="theirs"), LoopThread() as loop:
        taken = 0
        for found in loop.iterate(quiet_after(3)):
            taken += len(found)
            if taken == 3:
                raise ValueError("theirs")
    gc.collect()
    assert not caplog.records


def test_whoever_takes_nothing_more_while_much_waits_can_leave() -> None:
    async def much() -> AsyncIterator[list[int]]:
        while True:
            yield [1]

    with LoopThread() as loop:
        assert next(iter(loop.iterate(much())))


def test_what_the_work_raises_reaches_whoever_iterates() -> None:
    async def failing() -> AsyncIterator[list[int]]:
        yield [1]
        raise OSError("broken")

    with LoopThread() as loop, pytest.raises(OSError, match="broken"):
        list(loop.iterate(failing()))
