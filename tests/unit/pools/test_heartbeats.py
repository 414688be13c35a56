"""Which workers and drivers of a pool count as connected, when machines sleep and clocks are set."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import distributed.batched
import distributed.scheduler
import distributed.worker
import pytest
from distributed import Client, Worker
from tornado.httpclient import AsyncHTTPClient

from spotmpi.programs.pool.scheduler import AwakeClock, PoolScheduler, driver_connected
from spotmpi.programs.pool.settings import use_steady_time

HOUR = 3600.0


class Machine:
    """Its clocks: time of the day may be set, and monotonic time may go on while it sleeps, as it does on Windows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day = self.monotonic = 1e6
        monkeypatch.setattr(distributed.scheduler, "time", lambda: self.day)

    def run(self, clock: AwakeClock, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.day += 1.0
            self.monotonic += 1.0
            clock.read()


def nothing(machine: Machine) -> None:
    """A quiet machine."""


def sleep(machine: Machine) -> None:
    machine.day += HOUR


def stop(machine: Machine) -> None:
    """As SIGSTOP, a paused virtual machine, or sleep where monotonic time counts it."""
    machine.day += HOUR
    machine.monotonic += HOUR


def set_back(machine: Machine) -> None:
    machine.day -= HOUR


@pytest.mark.parametrize("event", [nothing, sleep, stop, set_back])
def test_workers_are_lost_by_their_silence_alone_whatever_clocks_do(
    monkeypatch: pytest.MonkeyPatch, event: Callable[[Machine], None]
) -> None:
    machine = Machine(monkeypatch)
    clock = AwakeClock(lambda: machine.monotonic)

    async def observe() -> None:
        options: dict[str, Any] = {"protocol": "inproc", "dashboard": False, "worker_ttl": "15s"}
        async with (
            PoolScheduler(clock, **options) as scheduler,
            Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False) as living,
            Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False) as frozen,
            Client(scheduler.address, asynchronous=True, set_as_default=False),
        ):
            assert driver_connected(scheduler)
            await asyncio.gather(living.heartbeat(), frozen.heartbeat())
            for worker in (living, frozen):
                worker.periodic_callbacks["heartbeat"].stop()
            await asyncio.sleep(0)
            event(machine)
            await scheduler.check_worker_ttl()
            assert set(scheduler.workers) == {living.address, frozen.address}
            assert driver_connected(scheduler)

            machine.run(clock, 14)
            await living.heartbeat()
            machine.run(clock, 14)
            await scheduler.check_worker_ttl()
            assert set(scheduler.workers) == {living.address}
            machine.run(clock, 20)
            assert not driver_connected(scheduler)

    asyncio.run(observe())


def test_no_message_waits_for_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tornado reads the clock as set; Dask, which was imported before, holds the same function of Python."""
    use_steady_time()
    unix = time.time

    async def send() -> None:
        async with (
            PoolScheduler(protocol="inproc", dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False) as worker,
            Client(scheduler.address, asynchronous=True, set_as_default=False) as client,
        ):
            assert await client.submit(int, 1) == 1
            monkeypatch.setattr("time.time", lambda: unix() - HOUR)
            for each in (distributed.batched, distributed.scheduler, distributed.worker):
                assert each.time() == pytest.approx(unix(), abs=60)
            assert await asyncio.wait_for(client.submit(int, 2), 60) == 2
            heard = scheduler._heard[worker.address]
            while scheduler._heard[worker.address] == heard:
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(send(), 90))


def test_the_page_of_workers_is_there_with_steady_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By night the dashboard of a pool in pods has it, with bokeh."""
    use_steady_time()
    monkeypatch.delitem(sys.modules, "distributed.http.scheduler.info", raising=False)  # a scheduler imports it later

    async def read() -> str:
        async with (
            PoolScheduler(protocol="inproc", dashboard_address="127.0.0.1:0") as scheduler,
            Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False) as worker,
        ):
            port = scheduler.http_server.port
            answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/info/main/workers.html")
            assert worker.address in answer.body.decode()
            return str(answer.body.decode())

    assert "Last seen" in asyncio.run(asyncio.wait_for(read(), 60))


def test_a_clock_stands_still_while_its_process_is_stopped() -> None:
    times = itertools.chain([0.0, 1.0, 1.5], itertools.repeat(HOUR))
    clock = AwakeClock(lambda: next(times))
    assert [clock.read() for _ in range(4)] == [1.0, 1.5, 3.5, 3.5]
