"""The scheduler of a pool, on node 0.

    python -m spotmpi.programs.pool.scheduler --workers N [--host HOST] [--port PORT] [--address-file FILE] ...

It serves only who presents the run's certificate (SPOTMPI_POOL_TLS is the folder with it), keeps the results of calls
until a driver has collected them, and ends by itself when no driver is connected for too long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Collection
from typing import Any

import dask
import distributed.versions
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.http.utils import get_handlers

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically
from spotmpi.programs.pool.call import KEY_MARK, CallAborted
from spotmpi.programs.pool.execution import cut
from spotmpi.programs.pool.settings import security, settings, versions, worker_index

KEEPER = "spotmpi-keeper"  # the client of Dask that holds calls for drivers that lost their connection
MAX_DEATHS = 3  # of its worker's process, after which a call is given up
_CONTACT = 30.0  # seconds since a client's last heartbeat, which comes every 5 s, for which it counts as connected
_WATCH = 0.25  # seconds between looks at the drivers
_PAGES = ("distributed.http.scheduler.info", "distributed.http.statics")  # of the dashboard, besides those of bokeh
_UNFINISHED = ("processing", "queued", "no-worker")
_WORKER_CLIENT = "Client-worker-"  # the name of a client in a worker begins with it


class PoolScheduler(Scheduler):
    """Dask's scheduler, which also gives up calls that end their worker's process again and again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.deaths: dict[Any, int] = {}  # of processes, by the key of the call that ended them
        self.unclear: dict[int, list[Any]] = {}  # the keys of which one ended the process of a worker, by its number

    async def remove_worker(self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True) -> Any:
        """Remove a worker; a connection that breaks without notice is the end of its process.

        A worker without heartbeats may be one whose node was taken away, which is no fault of its call.
        """
        worker = self.workers.get(self.coerce_address(address))
        if worker is not None and not expected and "ttl" not in stimulus_id:
            tasks = sorted(worker.processing, key=lambda task: task.priority or ())
            if len(tasks) == 1:
                self._blame(tasks[0].key, worker_index(str(worker.name)), stimulus_id)
            elif tasks:  # one may have finished just before, and the next one have ended the process
                self.unclear[worker_index(str(worker.name))] = [task.key for task in tasks]
        return await super().remove_worker(address=address, stimulus_id=stimulus_id, expected=expected, close=close)

    def settle(self, worker: int, executed: str | None) -> None:
        """Blame the end of a worker's process on the key that it *executed*; None where nobody knows it."""
        keys = self.unclear.pop(worker, [])
        blamed = keys[:1] if executed is None else [key for key in keys if cut(key) == executed]
        for key in blamed:
            self._blame(key, worker, f"spotmpi-death-{time.time()}")

    def _blame(self, key: Any, worker: int, stimulus_id: str) -> None:
        self.deaths[key] = self.deaths.get(key, 0) + 1
        task = self.tasks.get(key)
        if self.deaths[key] < MAX_DEATHS or task is None or task.state not in _UNFINISHED:
            return
        name, deaths = str(key).partition(KEY_MARK)[0], self.deaths.pop(key)
        times = f"{deaths} times, most recently that of worker {worker}"
        reason = f"a call of {name} ended the process of its worker {times}; it is not retried"
        values: dict[str, Any] = {"exception": pickle.dumps(CallAborted(reason)), "cause": key}
        if task.processing_on is not None:
            values["worker"] = task.processing_on.address
        self.transitions(self.transition(key, "erred", stimulus_id=stimulus_id, **values), stimulus_id)


class Keeper(SchedulerPlugin):
    """Holds the calls of drivers, so that a cut connection loses none, and answers their questions about the pool."""

    name = "spotmpi-keeper"

    def __init__(self, scheduler: PoolScheduler, workers: int, replacement_limit: float | None) -> None:
        self.scheduler = scheduler
        self.size = workers
        self._replacement_limit = replacement_limit
        self._released: set[Any] = set()  # keys that were released before their calls arrived
        self.joined = 0  # workers, replacements included
        self.driver_came = False  # since `take_arrival` was called last
        self._has_dashboard = False
        scheduler.handlers.update(
            spotmpi_pool=self.describe,
            spotmpi_calls=self.calls,
            spotmpi_size=self.set_size,
            spotmpi_settle=self.settle,
            spotmpi_dashboard=self.open_dashboard,
        )
        scheduler.stream_handlers["spotmpi-release"] = self.release

    def update_graph(self, scheduler: Scheduler, *, keys: Collection[Any], **kwargs: Any) -> None:
        """Hold the calls that a driver has just sent."""
        own = [key for key in keys if KEY_MARK in str(key) and key not in self._released]
        self._released.difference_update(keys)
        if own:
            scheduler.client_desires_keys(keys=own, client=KEEPER)

    def add_client(self, scheduler: Scheduler, client: str) -> None:
        """Note a driver, which may be gone again when somebody looks."""
        self.driver_came = self.driver_came or not client.startswith(_WORKER_CLIENT)

    def take_arrival(self) -> bool:
        """Whether a driver has connected since this was called last."""
        came, self.driver_came = self.driver_came, False
        return came

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Count a worker, also as one of the pool where it is beyond the size that is known here."""
        self.scheduler.settle(worker_index(str(scheduler.workers[worker].name)), None)
        self.size = max(self.size, worker_index(str(scheduler.workers[worker].name)) + 1)
        self.joined += 1

    async def release(self, keys: list[Any], client: str) -> None:
        """Release calls whose results a driver has, or does not want any more."""
        self._released.update(key for key in keys if key not in self.scheduler.tasks)  # it overtook its own call
        if KEEPER in self.scheduler.clients:
            self.scheduler.client_releases_keys(keys=keys, client=KEEPER)
        for key in keys:
            self.scheduler.deaths.pop(key, None)

    async def describe(self) -> dict[str, Any]:
        """What a driver needs: versions, size, how many workers have ever joined, and those that are connected.

        ``replacement_limit`` are the seconds to wait once all are lost; None where they are restarted at once.
        """
        workers = {
            worker_index(str(worker.name)): {"name": str(worker.name), "host": worker.host}
            for worker in self.scheduler.workers.values()
            if worker_index(str(worker.name)) < self.size  # others are about to leave
        }
        description = {"id": self.scheduler.id, "versions": versions(), "size": self.size, "joined": self.joined}
        return {**description, "workers": workers, "replacement_limit": self._replacement_limit}

    async def settle(self, worker: int, executed: str) -> None:
        """Learn which key the former process of a worker *executed* when it ended, if any."""
        self.scheduler.settle(worker, executed)

    async def calls(self) -> dict[Any, str]:
        """The state of every call that is held, by key."""
        keeper = self.scheduler.clients.get(KEEPER)
        return {task.key: task.state for task in keeper.wants_what} if keeper else {}

    async def set_size(self, workers: int) -> None:
        """Set the desired number of workers of the pool."""
        self.size = workers

    async def open_dashboard(self) -> dict[str, Any]:
        """Show Dask's dashboard on this host alone: its ``port``, or the ``failure`` where the image has no bokeh."""
        scheduler = self.scheduler
        try:
            from distributed.dashboard.scheduler import connect
        except ImportError as error:
            return {"failure": str(error)}
        if not self._has_dashboard:
            self._has_dashboard = True
            connect(scheduler.http_application, scheduler.http_server, scheduler, prefix="")
            scheduler.http_application.add_handlers(".*", get_handlers(scheduler, list(_PAGES), prefix=""))
        return {"port": scheduler.services["dashboard"].port}


class DriverWatch:
    """Tells when a pool has been without a driver for too long; *start* and *limit* are seconds or None."""

    def __init__(self, start: float | None, limit: float | None, now: float) -> None:
        self._start, self._limit = start, limit
        self._begin, self._contact = now, None if start is not None else now

    def reason(self, connected: bool, now: float) -> str | None:
        """Why the pool ends, or None; *connected* says whether a driver is."""
        if connected:
            self._contact = now
        elif self._contact is None:
            assert self._start is not None
            if now - self._begin >= self._start:
                return f"no driver connected within limits.start ({self._start:g}s)"
        elif self._limit is not None and now - self._contact >= self._limit:
            return f"no driver for {self._limit:g}s (limits.driver)"
        return None


def driver_connected(scheduler: Scheduler, now: float) -> bool:
    """Whether a driver is connected: a client of Dask that is not part of a worker, and answers."""
    return any(
        client in scheduler.client_comms and not client.startswith(_WORKER_CLIENT) and now - state.last_seen < _CONTACT
        for client, state in scheduler.clients.items()
    )


async def serve(options: argparse.Namespace) -> int:
    """Serve until a signal, or until no driver has been connected for too long; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Drivers compare the versions that matter; Dask would warn each of them of every other difference.
    distributed.versions.error_message = lambda *arguments, **options: {"warning": "", "error": ""}
    scheduler = PoolScheduler(
        host=options.host,
        port=options.port,
        protocol="tls",
        security=security(os.environ[protocol.ENV_POOL_TLS]),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    )
    keeper = Keeper(scheduler, options.workers, options.replacement_limit)
    scheduler.add_plugin(keeper)
    async with scheduler:
        if options.address_file:
            write_atomically(options.address_file, json.dumps({"url": scheduler.address, "id": scheduler.id}))
        print(f"scheduler of {options.workers} workers listens at {scheduler.address}", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        watch = DriverWatch(options.start_limit, options.driver_limit, time.monotonic())
        while not stop.is_set():
            connected = keeper.take_arrival() or driver_connected(scheduler, time.time())
            reason = watch.reason(connected, time.monotonic())
            if reason:
                print(protocol.encode(protocol.FATAL, reason=reason), flush=True)
                return protocol.NOT_RETRYABLE
            await asyncio.wait([stopped], timeout=_WATCH)
    return 0


def main(arguments: list[str]) -> int:
    """Serve as the options say."""
    parser = argparse.ArgumentParser(prog="spotmpi.programs.pool.scheduler")
    parser.add_argument("--host", default=None)
    parser.add_argument("--port", type=int, default=protocol.POOL_PORT)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--interruptions", type=int, default=100)
    parser.add_argument("--start-limit", type=float, default=None)
    parser.add_argument("--driver-limit", type=float, default=None)
    parser.add_argument("--replacement-limit", type=float, default=None)
    parser.add_argument("--address-file", default=None)
    options = parser.parse_args(arguments)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with dask.config.set(settings(options.interruptions)):
        return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
