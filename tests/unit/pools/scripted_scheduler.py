"""A scheduler of a pool within the test's process, behind the client that `Engine` uses: tests script its faults.

States of futures are Dask's own. As seen with distributed 2026.8, a question or a fetch that a cut connection
interrupts raises an OSError without a number, and what has not been released stays with the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any

from distributed.client import FutureState

from spotmpi.pools.calls import Call
from spotmpi.pools.engine import Engine
from spotmpi.programs.pool.call import CallFailure, execute
from spotmpi.programs.pool.settings import versions


class ScriptedFuture:
    """What the engine uses of a future of Dask."""

    def __init__(self, key: str) -> None:
        self._state: FutureState | None = FutureState(key)

    def release(self) -> None:
        """Forget it, which the scheduler hears of elsewhere."""


class ScriptedScheduler:
    """Executes calls at once, unless it *holds* them.

    Attributes:
        up: whether it answers; drivers notice a change by `cut`.
        fetched: the number of results of each fetch.
        released: the keys that drivers have let go.
        loses_messages: whether those do not arrive, as what a connection has buffered when it breaks.
        on_question: called with each question before its answer, which it may replace by raising.
        waits: whether the answer to a question takes longer still.
    """

    def __init__(self) -> None:
        self.id, self.up, self.holds = "scheduler-1", True, False
        self.workers: dict[int, dict[str, str]] = {0: {"host": "127.0.0.1"}, 1: {"host": "127.0.0.1"}}
        self.joined, self.size = 2, 2
        self.results: dict[str, bytes | CallFailure | None] = {}  # None: in flight
        self.fetched: list[int] = []
        self.released: list[str] = []
        self.on_question: Callable[[str], None] = lambda question: None
        self.waits: Callable[[str], bool] = lambda question: False
        self.taken: set[str] = set()
        self.loses_messages = False
        self._client: ScriptedClient | None = None

    def client(self, url: str, tls: str, driver: str, on_cut: Callable[[], None]) -> ScriptedClient:
        """In the place of `PoolClient`."""
        self._client = ScriptedClient(self, on_cut)
        return self._client

    def cut(self, engine: Engine) -> None:
        """Break the connection of *engine*."""
        assert self._client
        engine._loop.call_soon_threadsafe(self._client.cut)

    def receive(self, call: Call) -> None:
        """Take a call, which it has already if it is sent again."""
        if call.key in self.results:
            return
        self.results[call.key] = None
        if not self.holds:
            try:
                self.results[call.key] = execute(call.payload)
            except CallFailure as failure:
                self.results[call.key] = failure


class ScriptedClient:
    """A driver's connection to a `ScriptedScheduler`."""

    def __init__(self, scheduler: ScriptedScheduler, on_cut: Callable[[], None]) -> None:
        self._scheduler, self._on_cut = scheduler, on_cut
        self.connected = False

    def __await__(self) -> Generator[Any, None, ScriptedClient]:
        yield from asyncio.sleep(0).__await__()
        self._require_up()
        self.connected = True
        return self

    def cut(self) -> None:
        """Break."""
        self.connected = False
        self._on_cut()

    async def ask(self, question: str, **arguments: Any) -> Any:
        """As `PoolClient.ask`, which reports a question without a connection as a cut."""
        await asyncio.sleep(0)
        scheduler = self._scheduler
        try:
            self._require_up()
            scheduler.on_question(question)
            while scheduler.waits(question):
                await asyncio.sleep(0.01)
        except OSError as error:
            if error.errno is None:
                self._on_cut()
            raise
        if question == "calls":
            return {**dict.fromkeys(scheduler.results, "memory"), **dict.fromkeys(scheduler.taken, "taken")}
        if question != "pool":
            return [] if question == "collect" else None
        description = {"id": scheduler.id, "versions": versions(), "size": scheduler.size, "joined": scheduler.joined}
        return {**description, "workers": dict(scheduler.workers), "occupied": [], "replacement_limit": None}

    def send(self, calls: list[Call], asynchronous: bool, worker: int | None) -> list[tuple[Call, ScriptedFuture]]:
        """As `PoolClient.send`."""
        for call in calls:
            self._scheduler.receive(call)
        return self.attach(calls)

    def attach(self, calls: Iterable[Call]) -> list[tuple[Call, ScriptedFuture]]:
        """As `PoolClient.attach`."""
        sent = [(call, ScriptedFuture(call.key)) for call in calls]
        for call, future in sent:
            result = self._scheduler.results[call.key]
            assert future._state
            if isinstance(result, CallFailure):
                future._state.status, future._state.exception = "error", result  # type: ignore[assignment]
            elif result is not None:
                future._state.finish()
        return sent

    async def fetch(self, sent: list[tuple[Call, ScriptedFuture]]) -> list[Any]:
        """As `PoolClient.fetch`."""
        await asyncio.sleep(0)
        self._require_up()
        self._scheduler.on_question("fetch")
        self._scheduler.fetched.append(len(sent))
        return [self._scheduler.results[call.key] for call, _ in sent]

    def let_go(self, keys: list[str]) -> None:
        """As `PoolClient.let_go`."""
        if self._scheduler.loses_messages:
            return
        self._scheduler.released.extend(keys)
        for key in keys:
            self._scheduler.results.pop(key, None)

    async def leave(self, driver: str) -> None:
        """As `PoolClient.leave`."""
        self._require_up()
        if self._scheduler.loses_messages:
            self._scheduler.loses_messages = False  # on the next connection
            raise OSError("the connection is cut")

    async def shut(self) -> None:
        """As `PoolClient.shut`."""
        self.connected = False

    def _require_up(self) -> None:
        if not self._scheduler.up:
            raise OSError("the scheduler is down")
