"""A pool of workers as its driver sees it."""

from __future__ import annotations

import contextvars
import html
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO, TypeVar

from spotmpi.agent.protocol import counted, dollars
from spotmpi.pools import calls
from spotmpi.pools.calls import Call, is_count, warn_if_large
from spotmpi.pools.connection import CLOSED
from spotmpi.pools.engine import FORKED, Engine
from spotmpi.pools.errors import PoolError
from spotmpi.pools.map import MapCalls
from spotmpi.pools.progress import for_map
from spotmpi.programs.pool.call import function_name, is_async, pack, pack_function

if TYPE_CHECKING:
    from distributed import Client

    from spotmpi.pools.async_pool import AsyncPool

_POLL = 0.1  # seconds between looks at a pool that is opened though nobody waits for it any more
_PATIENCE = 3.0  # seconds that a representation may wait for an answer
_serials = itertools.count()
T = TypeVar("T")


class PoolSummary(NamedTuple):
    """Where a pool runs: the names of its *nodes*, its *zone*, and its *cost* so far in US dollars, where known."""

    nodes: tuple[str, ...] = ()
    zone: str | None = None
    cost: float | None = None


class Connection(Protocol):
    """What a driver needs of the run that a pool is: where it is, and what can be done with it.

    `outlives` says whether it goes on when the driver closes the pool.
    """

    run: str
    outlives: bool

    def open(self, output: Callable[[int, str, Sequence[str]], None]) -> Engine:
        """Start the run if need be, wait until its scheduler listens, and connect to it."""
        ...

    def resize(self, workers: int) -> None:
        """Request another number of workers."""
        ...

    def summary(self) -> PoolSummary:
        """Where the pool runs and what it has cost."""
        ...

    def close(self) -> None:
        """End what `open` started."""
        ...


@dataclass(frozen=True)
class Worker:
    """One worker of a pool: its number, and whether it is connected now."""

    index: int
    host: str | None
    pool: Pool = field(repr=False)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        """Execute a call on this worker alone, or on its replacement."""
        return self.pool._submit(function, args, kwargs, self.index)

    @property
    def connected(self) -> bool:
        """Whether it was connected when `Pool.workers` was read."""
        return self.host is not None


class Pool:
    """Workers that execute functions; ``with``, or the first use, opens the pool.

    With ``async with`` the same methods are awaitable. What workers print is shown unless *prints* is false; on a
    terminal each line as *printable* has it.
    """

    def __init__(self, connection: Connection, prints: bool = True, printable: Callable[[str], str] = str) -> None:
        self._connection = connection
        self._output = partial(_print_lines, printable) if prints else _ignore_lines
        self._engine: Engine | None = None
        self._client: Client | None = None
        self._closed = self._is_foreign = False
        self._opening = threading.Lock()  # threads that use it first at the same time start one run
        _pools.add(self)

    @property
    def id(self) -> str:
        """The id of the pool's run; empty before the pool is opened."""
        return self._connection.run

    def open(self) -> Pool:
        """Start the pool and connect to it, unless it is open already; returns itself.

        Raises:
            PoolError: the pool was closed, or belongs to the parent of this process.
        """
        if self._is_foreign:
            raise PoolError(FORKED)
        engine = self._engine
        if engine is None and not self._closed:
            engine = self._start()
        if self._closed or engine is None:
            raise PoolError(CLOSED)
        if engine.is_copy:
            raise PoolError(FORKED)
        return self

    def leave_to_parent(self) -> None:
        """In a forked process, leave a pool to the parent's thread that is opening it: its lock stays taken here."""
        self._is_foreign = self._opening.locked()

    def _start(self) -> Engine | None:
        with self._opening:
            if self._engine is None and not self._closed:
                engine = self._connection.open(self._output)
                if self._closed:  # meanwhile
                    engine.close()
                    self._connection.close()
                else:
                    self._engine = engine
            return self._engine

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        """Execute one call on any worker; a future of `concurrent.futures`. Asynchronous functions are awaited."""
        return self._submit(function, args, kwargs)

    def map(
        self,
        function: Callable[..., Any],
        *iterables: Iterable[Any],
        buffersize: int | None = None,
        progress: bool | None = None,
    ) -> Iterator[Any]:
        """The results of a call for each item, in the order of the items, as soon as available.

        At most *buffersize* calls are in flight, by default 256 and fewer with large arguments or results, so the
        iterables may be endless. An error of a call, or of the iterables, is raised in its place, and cancels the calls
        that follow. *progress* shows a bar on stderr, by default in a terminal or a notebook.
        """
        return self._start_map(function, iterables, buffersize).results(
            for_map(function_name(function), iterables, progress)
        )

    def _start_map(
        self, function: Callable[..., Any], iterables: Sequence[Iterable[Any]], buffersize: int | None
    ) -> MapCalls:
        """The calls of `map`, of which the first are sent."""
        if not iterables:
            raise TypeError("map needs at least one iterable, whose items are the arguments of the calls")
        name, packed, serial = function_name(function), pack_function(function), next(_serials)
        asynchronous, engine = is_async(function), self._opened()
        sent = (
            Call(calls.key(name, engine.driver, serial, index), _payload(name, packed, args, {}), asynchronous)
            for index, args in enumerate(zip(*iterables, strict=False))
        )
        return MapCalls(engine, sent, buffersize)

    def run(self, function: Callable[..., Any], *args: Any, each: Iterable[Any] | None = None) -> dict[int, Any]:
        """Execute a call once on every worker; the results by the number of the worker.

        With *each*, worker i gets ``each[i]`` as its first argument.

        Raises:
            ValueError: *each* does not have one value for each worker.
        """
        size = int(self._opened().workers()["size"])
        values = None if each is None else list(each)
        if values is not None and len(values) != size:
            raise ValueError(
                f"each has {counted(len(values), 'value')} for {counted(size, 'worker')}: give one for each worker"
            )
        sent = [
            self._submit(function, args if values is None else (values[worker], *args), {}, worker)
            for worker in range(size)
        ]
        return {worker: call.result() for worker, call in enumerate(sent)}

    @property
    def workers(self) -> list[Worker]:
        """All workers of the pool by number, also those that are not connected at the moment."""
        description = self._opened().workers()
        return [
            Worker(index, description["workers"].get(index, {}).get("host"), self)
            for index in range(description["size"])
        ]

    def upload(self, path: str | Path) -> None:
        """Copy a file or folder to every worker, including later ones; modules are reloaded."""
        from spotmpi.programs.pool.files import read

        # The name of ".." is that of this folder: as "..", its files would be written above the folders of workers.
        source = Path(os.path.normpath(Path(path).absolute()))
        if not source.name:
            raise ValueError(f"path = {str(path)!r}: a file or folder with a name is uploaded, not the root of all")
        self._opened().upload(source.name, read(source))

    def scale(self, workers: int) -> None:
        """Change the number of workers; this does not wait for them to start or leave."""
        if not is_count(workers):
            raise ValueError(f"workers = {workers!r}: a pool has at least one worker, and a whole number of them")
        engine = self._opened()
        self._connection.resize(workers)
        engine.set_size(workers)

    @property
    def client(self) -> Client:
        """The real Dask client, with its own connection; its calls do not survive a broken connection."""
        engine = self._opened()
        if self._client is None:
            self._client = engine.client()
        return self._client

    def collect(self, name: str | None = None) -> Any:
        """The results of calls that earlier drivers left, by function: a list for each; waits for calls in flight.

        With the *name* of a function only its list. An exception of a call is in the place of its result. Calls of a
        driver that is connected are left to it.
        """
        engine = self._opened()
        foreign = [Call(key) for key in sorted(engine.collect(name), key=lambda key: calls.split_key(key)[1:])]
        engine.submit(foreign)
        results: dict[str, list[Any]] = {}
        for call in foreign:
            error = call.exception()
            results.setdefault(call.name, []).append(call.result() if error is None else error)
        return results if name is None else results.get(name, [])

    def summary(self) -> PoolSummary:
        """Where the pool runs and what it has cost so far, as far as that is known."""
        summary = _within(_PATIENCE, self._connection.summary)
        return summary if isinstance(summary, PoolSummary) else PoolSummary()

    def close(self) -> None:
        """End the connection, and the run if this driver started it; a forked process leaves both to its parent."""
        self._closed = True
        engine, self._engine = self._engine, None
        client, self._client = self._client, None
        if self._is_foreign or (engine is not None and engine.is_copy):
            return
        try:
            if client is not None:
                client.close()
            if engine is not None:
                engine.close(leave=self._connection.outlives)
        finally:
            self._connection.close()

    def __enter__(self) -> Pool:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncPool:
        import asyncio

        from spotmpi.pools.async_pool import AsyncPool

        opening = asyncio.ensure_future(asyncio.to_thread(self.open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            while not opening.done():  # in its thread, which waits until there is a scheduler, or the run has ended
                await asyncio.to_thread(self._connection.close)
                await asyncio.wait([opening], timeout=_POLL)
            await asyncio.gather(opening, return_exceptions=True)
            await asyncio.to_thread(self.close)
            raise
        return AsyncPool(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def __reduce__(self) -> Any:
        raise TypeError("a pool is of its driver alone: in a worker spotmpi.pool() gives the pool that it belongs to")

    def __repr__(self) -> str:
        return f"<{f'pool {self.id}'.strip()}: {', '.join(text for _, text in self._facts())}>"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._facts())
        return f"<table><tr><th>pool</th><td>{html.escape(self.id)}</td></tr>{''.join(rows)}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """What is known of the pool within a few seconds, with a name for each; no errors."""
        if self._engine is None:
            return [("state", "closed" if self._closed else "not open")]
        workers = _within(_PATIENCE, self._engine.workers)
        if isinstance(workers, Exception):
            return [("state", str(workers))]
        summary = self.summary()
        hosts = sorted({worker["host"] for worker in workers["workers"].values()})
        nodes = ", ".join(summary.nodes or hosts) or "no node"
        facts = [("workers", f"{len(workers['workers'])} of {counted(workers['size'], 'worker')} connected on {nodes}")]
        facts += [("zone", f"zone {summary.zone}")] if summary.zone else []
        facts += [("cost", f"{dollars(summary.cost)} so far")] if summary.cost is not None else []
        return [*facts, ("calls", counted(self._engine.in_flight(), "call"))]

    def _opened(self) -> Engine:
        self.open()
        assert self._engine is not None
        return self._engine

    def _submit(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], worker: int | None = None
    ) -> Call:
        engine = self._opened()
        name = function_name(function)
        payload = _payload(name, pack_function(function), args, kwargs)
        call = Call(calls.key(name, engine.driver, next(_serials), 0), payload, is_async(function), worker)
        engine.submit([call])
        return call


def _leave_to_parent() -> None:
    for pool in list(_pools):
        pool.leave_to_parent()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
os.register_at_fork(after_in_child=_leave_to_parent)


def _within(seconds: float, function: Callable[[], T]) -> T | Exception:
    """The result of *function*, or what it raised; a TimeoutError after so many seconds, while it keeps running."""
    results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(function())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except queue.Empty:
        return TimeoutError(f"no answer within {seconds:g} s")


def _payload(name: str, function: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    payload = pack(name, function, args, kwargs)
    warn_if_large(len(payload), f"a call of {name}")
    return payload


def _print_lines(printable: Callable[[str], str], worker: int, stream: str, lines: Sequence[str]) -> None:
    """Print what a worker printed, with its name; in a notebook below the cell that executes now."""
    target = sys.stderr if stream == "stderr" else sys.stdout
    shown = map(printable, lines) if target.isatty() else lines
    text = "".join(f"[worker {worker}] {line}\n" for line in shown)
    # This thread's context is that of the cell that opened the pool, to which its output would go.
    contextvars.Context().run(_print, text, target)


def _print(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"  # of which the worker knows nothing
    print(text.encode(encoding, "backslashreplace").decode(encoding), end="", file=stream, flush=True)


def _ignore_lines(worker: int, stream: str, lines: Sequence[str]) -> None:
    """Leave it at the run's log, in which the lines are already."""
