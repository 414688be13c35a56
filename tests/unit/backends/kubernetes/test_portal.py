"""Asynchronous work behind ordinary iterators."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from spotmpi.backends.kubernetes.client.portal import call, iterate


async def quiet_after(count: int) -> AsyncIterator[list[int]]:
    """As many numbers and then silence, by way of a generator inside another, as a cluster's streams are."""

    async def inner() -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)

    async for number in inner():
        yield [number]


def test_a_consumer_that_raises_while_nothing_arrives_sees_its_own_exception_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No generator's "already executing" traceback follows the consumer's exception."""
    with pytest.raises(ValueError, match="theirs"), closing(iterate(quiet_after(3))) as batches:
        count = 0
        for items in batches:
            count += len(items)
            if count == 3:
                raise ValueError("theirs")
    gc.collect()
    assert not caplog.records


def test_a_consumer_may_close_the_iterator_while_much_waits() -> None:
    async def much() -> AsyncIterator[list[int]]:
        while True:
            yield [1]

    with closing(iterate(much())) as batches:
        assert next(batches)


def test_an_error_of_the_work_reaches_the_consumer() -> None:
    async def failing() -> AsyncIterator[list[int]]:
        yield [1]
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        list(iterate(failing()))


async def clean_up(steps: list[str]) -> None:
    """Delete what was created, as the pod that reads a run volume."""
    for step in ("first", "second"):
        await asyncio.sleep(0.01)
        steps.append(step)


def test_work_that_is_cancelled_or_interrupted_may_wait_for_its_clean_up() -> None:
    """As at the end of `logs`, and at a Ctrl-C while nothing happens to a run."""
    steps: list[str] = []

    async def silent(interrupt: bool) -> AsyncIterator[list[int]]:
        try:
            yield [1]
            if interrupt:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)
        finally:
            await clean_up(steps)

    with closing(iterate(silent(interrupt=False))) as batches:
        next(batches)
    assert steps == ["first", "second"]
    with pytest.raises(KeyboardInterrupt), closing(iterate(silent(interrupt=True))) as batches:
        list(batches)
    assert steps == ["first", "second"] * 2


def test_a_call_that_is_interrupted_waits_for_the_clean_up() -> None:
    """As a Ctrl-C while a pod for the run volume starts."""
    steps: list[str] = []

    async def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)
        finally:
            await clean_up(steps)

    with pytest.raises(KeyboardInterrupt):
        call(interrupted())
    assert steps == ["first", "second"]


def test_a_call_works_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def notebook() -> int:
        return call(answer())

    assert asyncio.run(notebook()) == 42
