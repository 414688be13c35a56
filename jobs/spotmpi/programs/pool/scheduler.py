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
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import dask
import distributed.versions
from distributed import Scheduler
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.http.utils import get_handlers
from distributed.scheduler import TaskState, heartbeat_interval
from tornado.ioloop import PeriodicCallback

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically
from spotmpi.agent.plan import WORKER, Member, read_member
from spotmpi.agent.protocol import counted
from spotmpi.programs.pool import collect_garbage
from spotmpi.programs.pool.call import KEY_MARK, TAKEN, CallAborted, driver_of
from spotmpi.programs.pool.execution import shortened
from spotmpi.programs.pool.files import UploadedFiles
from spotmpi.programs.pool.settings import (
    DRIVER_RETURN,
    pinned_worker,
    security,
    settings,
    use_steady_time,
    versions,
    worker_member,
)

HELD_CALLS = "spotmpi-held-calls"  # the client of Dask that holds calls for drivers that lost their connection
MAX_DEATHS = 3  # of its worker's process, after which a call is given up
_CONTACT = 30.0  # seconds since a client's last heartbeat, which comes every 5 s, for which it counts as connected
_POLL = 0.01  # seconds
_LEAVE = 5.0  # seconds in which the message of a driver that leaves arrives, which was sent before its question
_WATCH = 0.25  # seconds between looks at the drivers
_TICK = 1.0  # seconds between looks at the clock
_PAGES = ("distributed.http.scheduler.info", "distributed.http.statics")  # of the dashboard, besides those of bokeh
_UNFINISHED = ("processing", "queued", "no-worker")
DRIVER_CLIENT = "PoolClient"  # the class of drivers' clients, with which Dask begins their names
_WORKER_CLIENT = "Client-worker-"  # the name of a client in a worker begins with it


class AwakeClock:
    """Seconds for which this process has been running: those in which it, or its machine, is stopped do not count.

    Time of the day may be set. *now* is ``time.monotonic``, which some systems let go on while they sleep.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last, self._seconds = now, now(), 0.0

    def read(self) -> float:
        """The seconds so far; to be read every `_TICK`."""
        now = self._now()
        self._seconds += min(now - self._last, 2 * _TICK)
        self._last = now
        return self._seconds


class PoolScheduler(Scheduler):
    """Dask's scheduler, which also gives up calls that end their worker's process again and again.

    Nor does it lose workers while the machine sleeps, or when its clock is set: Dask compares time of the day.
    """

    def __init__(self, clock: AwakeClock | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.deaths: dict[Any, int] = {}  # of processes, by the key of the call that ended them
        self.unclear: dict[Member | None, list[Any]] = {}  # the keys of which one ended the process of a worker
        self.clock = clock or AwakeClock()
        self._heard: dict[str, float] = {}  # when the latest heartbeat of a worker or client came, by `clock`
        self.periodic_callbacks["spotmpi-clock"] = PeriodicCallback(self._tick, _TICK * 1000)

    def _tick(self) -> None:
        self.clock.read()

    def heartbeat_worker(self, *, address: str, **values: Any) -> Any:
        """Note a heartbeat of a worker."""
        self._heard[self.coerce_address(address)] = self.clock.read()
        return super().heartbeat_worker(address=address, **values)

    def client_heartbeat(self, client: str) -> None:
        """Note a heartbeat of a client."""
        self._heard[client] = self.clock.read()
        super().client_heartbeat(client)

    def silence(self, name: str) -> float:
        """The seconds since the latest heartbeat of a worker's address or a client, or since the first question."""
        now = self.clock.read()
        return now - self._heard.setdefault(name, now)

    async def check_worker_ttl(self) -> None:
        """Remove workers without heartbeats."""
        assert self.worker_ttl
        limit = max(self.worker_ttl, 10 * heartbeat_interval(len(self.workers)))
        lost = [address for address in self.workers if self.silence(address) > limit]
        if lost:
            stimulus = f"check-worker-ttl-{self.clock.read()}"
            await self.restart_workers(lost, wait_for_workers=False, stimulus_id=stimulus)

    async def remove_worker(self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True) -> Any:
        """Remove a worker; a connection that breaks without notice is the end of its process.

        A worker without heartbeats may be one whose node was taken away, which is not a fault of its call.
        """
        worker = self.workers.get(self.coerce_address(address))
        self._heard.pop(self.coerce_address(address), None)
        if worker is not None and not expected and "ttl" not in stimulus_id:
            tasks = sorted(worker.processing, key=lambda task: task.priority or ())
            member = worker_member(str(worker.name))
            if len(tasks) == 1:
                self._blame(tasks[0].key, member, stimulus_id)
            elif tasks:  # one may have finished just before, and the next one have ended the process
                self.unclear[member] = [task.key for task in tasks]
        return await super().remove_worker(address=address, stimulus_id=stimulus_id, expected=expected, close=close)

    def attribute_death(self, worker: Member | None, executed: str | None) -> None:
        """Blame the end of a worker's process on the key that it *executed*; None where nobody knows it."""
        keys = self.unclear.pop(worker, [])
        blamed = keys[:1] if executed is None else [key for key in keys if shortened(key) == executed]
        for key in blamed:
            self._blame(key, worker, f"spotmpi-death-{time.time()}")

    def _blame(self, key: Any, worker: Member | None, stimulus_id: str) -> None:
        self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths[key] >= MAX_DEATHS and key in self.tasks and self.tasks[key].state in _UNFINISHED:
            times = f"{self.deaths.pop(key)} times, most recently that of {worker}"
            self.give_up(key, f"ended the process of its worker {times}; it is not retried", stimulus_id)

    def give_up(self, key: Any, reason: str, stimulus_id: str) -> None:
        """End a call that has not finished with a `CallAborted`."""
        text = f"a call of {str(key).partition(KEY_MARK)[0]} {reason}"
        values: dict[str, Any] = {"exception": pickle.dumps(CallAborted(text)), "cause": key}
        worker = self.tasks[key].processing_on
        if worker is not None:
            values["worker"] = worker.address
        self.transitions(self.transition(key, "erred", stimulus_id=stimulus_id, **values), stimulus_id)


class CallsPlugin(SchedulerPlugin):
    """Holds the calls of drivers, so that a cut connection loses none, and answers their questions about the pool."""

    name = "spotmpi-calls"

    def __init__(self, scheduler: PoolScheduler, workers: int, replacement_limit: float | None) -> None:
        self.scheduler = scheduler
        self.size = workers
        self._resized = False  # by a driver, which knows better than workers that come and go
        self._collectors: dict[Any, str] = {}  # drivers that have collected calls of others, by key
        self._left: set[str] = set()  # drivers that have closed the pool
        self._cut: dict[str, float] = {}  # when connections of drivers have ended, by the scheduler's clock
        self._replacement_limit = replacement_limit
        self._released: set[Any] = set()  # keys that were released before their calls arrived
        self.joined = 0  # workers, replacements included
        self.driver_came = False  # since `take_arrival` was called last
        self._has_dashboard = False
        self._uploads = 0
        scheduler.handlers.update(
            spotmpi_pool=self.describe,
            spotmpi_calls=self.calls,
            spotmpi_collect=self.collect,
            spotmpi_left=self.wait_for_leave,
            spotmpi_size=self.set_size,
            spotmpi_death=self.attribute_death,
            spotmpi_upload=self.upload,
            spotmpi_dashboard=self.open_dashboard,
        )
        scheduler.stream_handlers.update({"spotmpi-release": self.release, "spotmpi-leave": self.leave})

    def update_graph(self, scheduler: Scheduler, *, keys: Collection[Any], **kwargs: Any) -> None:
        """Hold the calls that a driver has just sent."""
        own = [key for key in keys if KEY_MARK in str(key) and key not in self._released]
        self._released.difference_update(keys)
        if own:
            scheduler.client_desires_keys(keys=own, client=HELD_CALLS)
        if any(self._is_misplaced(scheduler.tasks[key]) for key in keys):
            asyncio.get_running_loop().call_soon(self._refuse_misplaced)  # once Dask has placed them

    def add_client(self, scheduler: Scheduler, client: str) -> None:
        """Note a driver, which may be gone again when somebody looks."""
        self.driver_came = self.driver_came or not client.startswith(_WORKER_CLIENT)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Note the end of a driver's connection."""
        self._cut[client_driver(client)] = self.scheduler.clock.read()

    def take_arrival(self) -> bool:
        """Whether a driver has connected since this was called last."""
        came, self.driver_came = self.driver_came, False
        return came

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Count a worker, also as one of the pool where it is beyond the size that is known here."""
        member = worker_member(str(scheduler.workers[worker].name))
        self.scheduler.attribute_death(member, None)
        if member is not None and member.role == WORKER and not self._resized:
            self.size = max(self.size, member.number + 1)
        self.joined += 1

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Look at the calls that it had, which Dask is about to place again."""
        asyncio.get_running_loop().call_soon(self._refuse_misplaced)

    def _is_misplaced(self, task: TaskState) -> bool:
        """Whether a call was sent to a worker that the pool has no more: nobody would ever execute it."""
        return pinned_worker(task.resource_restrictions or ()) >= self.size

    def _refuse_misplaced(self) -> None:
        size = counted(self.size, "worker")
        for task in list(self.scheduler.tasks.values()):
            if task.state in _UNFINISHED and self._is_misplaced(task):
                worker = pinned_worker(task.resource_restrictions or ())
                reason = f"was sent to worker {worker}, and the pool has {size} now, from number 0"
                self.scheduler.give_up(task.key, reason, f"spotmpi-size-{self.size}")

    async def release(self, keys: list[Any], client: str) -> None:
        """Release calls whose results a driver has, or does not want any more."""
        self._released.update(key for key in keys if key not in self.scheduler.tasks)  # it overtook its own call
        if HELD_CALLS in self.scheduler.clients:
            self.scheduler.client_releases_keys(keys=keys, client=HELD_CALLS)
        for key in keys:
            self.scheduler.deaths.pop(key, None)

    async def describe(self) -> dict[str, Any]:
        """What a driver needs: versions, size, how many workers have ever joined, and those that are connected.

        ``replacement_limit`` are the seconds to wait once all are lost; None where they are restarted at once.
        ``occupied`` are the workers that still execute a cancelled call.
        """
        connected = {
            member.number: worker
            for worker in self.scheduler.workers.values()
            if (member := worker_member(str(worker.name))) is not None
            and member.role == WORKER
            and member.number < self.size  # others are about to leave
        }
        workers = {number: {"name": str(worker.name), "host": worker.host} for number, worker in connected.items()}
        occupied = [number for number, worker in connected.items() if worker.status == Status.paused]
        description = {"id": self.scheduler.id, "versions": versions(), "size": self.size, "joined": self.joined}
        limit = self._replacement_limit
        return {**description, "workers": workers, "occupied": occupied, "replacement_limit": limit}

    async def attribute_death(self, worker: str, executed: str) -> None:
        """Learn which key the former process of a worker *executed* when it ended, if any."""
        self.scheduler.attribute_death(read_member(worker), executed)

    async def upload(self, key: str, packed: bytes) -> dict[str, Any]:
        """Give files to all workers, those to come included: by worker, whether that succeeded."""
        self._uploads += 1
        files = UploadedFiles(key, packed, self._uploads)
        answers: dict[str, Any] = await self.scheduler.register_worker_plugin(
            None, pickle.dumps(files), files.name, idempotent=False
        )
        return answers

    async def calls(self, driver: str) -> dict[Any, str]:
        """The state of every call that is held, by key; `TAKEN` for what others than *driver* have collected."""
        taken = {key: TAKEN for key, collector in self._collectors.items() if collector != driver}
        return {**self._held(), **taken}

    async def collect(self, driver: str, name: str | None) -> list[Any]:
        """Hand the calls of drivers that are gone over to *driver*: the keys of all that it has got so far.

        Each is handed over once, unless the driver that got it is gone too. Those whose connection has just been cut
        may come back, which is waited for.
        """
        deadline = self.scheduler.clock.read() + DRIVER_RETURN
        while True:
            now = self.scheduler.clock.read()
            connected = {client_driver(client) for client in self.scheduler.client_comms} - self._left
            recent = {each for each, since in self._cut.items() if now - since < DRIVER_RETURN} - self._left
            keys = [key for key in self._held() if name in (None, key.partition(KEY_MARK)[0])]
            holders = {key: self._collectors.get(key, driver_of(key)) for key in keys}
            if now >= deadline or not (recent - connected).intersection(holders.values()):
                break
            await asyncio.sleep(_POLL)
        gone = [key for key in keys if holders[key] not in connected | recent]
        self._collectors.update(dict.fromkeys(gone, driver))
        return [key for key in keys if self._collectors.get(key) == driver]

    async def leave(self, driver: str, client: str) -> None:
        """Learn that a driver is about to close its connection, and has released what it does not hold."""
        self._left.add(driver)

    async def wait_for_leave(self, driver: str) -> None:
        """Return once `leave` was called, for which a driver that asks has sent a message, or that may be lost."""
        deadline = self.scheduler.clock.read() + _LEAVE  # the driver has gone on long before
        while driver not in self._left and self.scheduler.clock.read() < deadline:
            await asyncio.sleep(_POLL)

    def _held(self) -> dict[Any, str]:
        client = self.scheduler.clients.get(HELD_CALLS)
        return {task.key: task.state for task in client.wants_what} if client else {}

    async def set_size(self, workers: int) -> None:
        """Set the desired number of workers of the pool."""
        self.size, self._resized = workers, True
        self._refuse_misplaced()

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
                return f"no driver connected within limits.start ({protocol.duration(self._start)})"
        elif self._limit is not None and now - self._contact >= self._limit:
            return f"no driver for {protocol.duration(self._limit)} (limits.driver)"
        return None


def client_driver(client: str) -> str:
    """The driver that a client of Dask belongs to, which has it in its name; empty for one that is not a `Pool`'s."""
    kind, _, rest = client.partition("-")
    return rest.partition("-")[0] if kind == DRIVER_CLIENT else ""


def driver_connected(scheduler: PoolScheduler) -> bool:
    """Whether a driver is connected: a client of Dask that is not part of a worker, and answers."""
    return any(
        client in scheduler.client_comms
        and not client.startswith(_WORKER_CLIENT)
        and scheduler.silence(client) < _CONTACT
        for client in scheduler.clients
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
        # Dask makes a folder there, which it leaves: in the run's folder, or on the disk of a pod.
        local_directory=str(Path(options.address_file).parent) if options.address_file else None,
    )
    plugin = CallsPlugin(scheduler, options.workers, options.replacement_limit)
    scheduler.add_plugin(plugin)
    async with scheduler:
        if options.address_file:
            write_atomically(
                options.address_file, json.dumps({"url": scheduler.address, "id": scheduler.id, "process": os.getpid()})
            )
        print(f"scheduler of {counted(options.workers, 'worker')} listens at {scheduler.address}", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        watch = DriverWatch(options.start_limit, options.driver_limit, scheduler.clock.read())
        while not stop.is_set():
            connected = plugin.take_arrival() or driver_connected(scheduler)
            reason = watch.reason(connected, scheduler.clock.read())
            if reason:
                print(protocol.encode(protocol.FATAL, reason=reason), flush=True)
                return protocol.NOT_RETRYABLE
            await asyncio.wait([stopped], timeout=_WATCH)
    return 0


def has_meaning(message: logging.LogRecord) -> bool:
    """Whether to show a message of Dask: not that a client which ends asks for what it has given up."""
    return "Couldn't gather keys" not in message.getMessage()


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
    logging.getLogger("distributed.scheduler").addFilter(has_meaning)
    use_steady_time()
    collect_garbage()
    with dask.config.set(settings(options.interruptions)):
        return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
