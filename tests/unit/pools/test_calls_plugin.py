"""Whose calls the scheduler of a pool holds, and which of them nobody would ever execute."""

from __future__ import annotations

import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from spotmpi.programs.pool.call import TAKEN, CallAborted
from spotmpi.programs.pool.execution import CancelledCalls
from spotmpi.programs.pool.scheduler import DRIVER_CLIENT, AwakeClock, CallsPlugin, PoolScheduler
from spotmpi.programs.pool.settings import resource

END = threading.Event()


def wait_for_end() -> None:
    END.wait(60)


class NamedClient(Client):
    """A client with the name by which the scheduler knows that of a driver."""

    def __init__(self, address: str, driver: str) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            address, name=driver, asynchronous=True, set_as_default=False
        )
        self.id = self.id.replace(type(self).__name__, DRIVER_CLIENT)


def pool_of(workers: int) -> tuple[PoolScheduler, CallsPlugin]:
    scheduler = PoolScheduler(protocol="inproc", dashboard=False)
    plugin = CallsPlugin(scheduler, workers, None)
    scheduler.add_plugin(plugin)
    return scheduler, plugin


def new_worker(scheduler: PoolScheduler, number: int, *plugins: WorkerPlugin) -> Worker:
    options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "dashboard": False, "plugins": plugins}
    return Worker(scheduler.address, name=f"worker-{number}-0a", resources={resource(number): 9}, **options)


def test_drivers_hear_which_workers_still_execute_a_cancelled_call() -> None:
    END.clear()

    async def cancel() -> None:
        scheduler, plugin = pool_of(2)
        async with (
            scheduler,
            NamedClient(scheduler.address, "9f") as client,
            new_worker(scheduler, 0),
            new_worker(scheduler, 1, CancelledCalls()) as busy,
        ):
            call = client.submit(wait_for_end, resources={resource(1): 1})
            while not busy.state.executing:
                await asyncio.sleep(0.01)
            assert (await plugin.describe())["occupied"] == []
            call.release()
            while (await plugin.describe())["occupied"] != [1]:
                await asyncio.sleep(0.01)
            END.set()
            while (await plugin.describe())["occupied"]:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(cancel(), 60))


def test_calls_for_a_worker_that_the_pool_has_no_more_end_whether_they_come_before_or_after_it_shrinks() -> None:
    END.clear()

    async def shrink() -> None:
        scheduler, plugin = pool_of(3)
        async with scheduler, NamedClient(scheduler.address, "9f") as client:

            def send(function: Any, worker: int) -> Any:
                key = f"{function.__name__}-spotmpi-9f-{len(scheduler.tasks)}-0"
                return client.submit(function, key=key, resources={resource(worker): 1})

            async with new_worker(scheduler, 0), new_worker(scheduler, 2) as third:
                waiting, executing, other = send(int, 1), send(wait_for_end, 2), send(str, 0)
                while not third.state.executing:
                    await asyncio.sleep(0.01)
                await plugin.set_size(2)
                with pytest.raises(CallAborted, match="wait_for_end was sent to worker 2, and the pool has 2 workers"):
                    await executing
                END.set()
                with pytest.raises(CallAborted, match="a call of int was sent to worker 2, and the pool has 2 workers"):
                    await send(int, 2)
                assert await other == "" and not waiting.done(), "worker 1 may still come"
                await plugin.set_size(1)
                with pytest.raises(CallAborted, match="int was sent to worker 1, and the pool has 1 worker now"):
                    await waiting
            async with new_worker(scheduler, 2):
                assert (await plugin.describe())["size"] == 1, "one that was about to start is about to leave"

    asyncio.run(shrink())


def test_a_scheduler_that_was_stopped_for_an_hour_gives_drivers_time_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of their connections have ended meanwhile, and the first to return would get the calls of the others."""
    key, seconds = "int-spotmpi-a1-0-0", [100.0]
    monkeypatch.setattr("spotmpi.programs.pool.scheduler.time", SimpleNamespace(monotonic=lambda: seconds[0]))

    async def stop() -> None:
        scheduler, plugin = pool_of(1)
        scheduler.clock = AwakeClock(lambda: seconds[0])
        async with scheduler, new_worker(scheduler, 0):
            async with NamedClient(scheduler.address, "a1") as first:
                assert await first.submit(int, key=key) == 0
            collecting = asyncio.ensure_future(plugin.collect("b2", None))
            await asyncio.sleep(0.05)
            seconds[0] += 3600.0
            await asyncio.sleep(0.05)
            assert not collecting.done()
            async with NamedClient(scheduler.address, "a1"):
                assert await collecting == []

    asyncio.run(stop())


def test_calls_of_a_driver_are_handed_over_once_and_only_when_it_is_gone() -> None:
    key = "int-spotmpi-a1-0-0"

    async def hand_over() -> None:
        scheduler, plugin = pool_of(1)
        scheduler.clock = AwakeClock(lambda: 100.0)  # so that no driver comes too late
        async with scheduler, new_worker(scheduler, 0):
            async with NamedClient(scheduler.address, "a1") as first:
                assert await first.submit(int, key=key) == 0
                assert await plugin.collect("b2", None) == [], "its driver is connected"
            collecting = asyncio.ensure_future(plugin.collect("b2", None))
            await asyncio.sleep(0.05)
            assert not collecting.done(), "its connection was cut, and it may come back"
            async with NamedClient(scheduler.address, "a1") as again:
                assert await collecting == [], "it has come back"
                await plugin.leave("a1", again.id)
                await plugin.wait_for_leave("a1")
                assert await plugin.collect("b2", "str") == []
                async with NamedClient(scheduler.address, "b2"), NamedClient(scheduler.address, "c3"):
                    taken = await asyncio.gather(*(plugin.collect(driver, "int") for driver in ("b2", "c3")))
                    assert taken == [[key], []]
                    assert await plugin.collect("b2", None) == [key], "an answer may be lost with its connection"
                assert (await plugin.calls("a1"))[key] == TAKEN
                assert (await plugin.calls("b2"))[key] == "memory"

    asyncio.run(hand_over())


def test_a_driver_that_never_says_that_it_leaves_is_not_waited_for_without_end() -> None:
    """Its message is lost with its connection; the scheduler looked for it 95 times a second from then on."""

    async def wait() -> None:
        seconds = itertools.count()
        async with PoolScheduler(protocol="inproc", dashboard=False) as scheduler:
            scheduler.clock = AwakeClock(lambda: float(next(seconds)))
            await asyncio.wait_for(CallsPlugin(scheduler, 1, None).wait_for_leave("a1"), 60)

    asyncio.run(wait())
