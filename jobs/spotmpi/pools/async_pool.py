"""The verbs of a pool for asynchronous code.

Each is that of `Pool` in a thread (`asyncio.to_thread`), or its future (`asyncio.wrap_future`). An adapter of all
attributes at once would hide the verbs from type checkers and editors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.pools.progress import for_map
from spotmpi.programs.pool.call import function_name

if TYPE_CHECKING:
    from distributed import Client

    from spotmpi.pools.calls import Call
    from spotmpi.pools.pool import Pool, Worker

_END = object()


@dataclass(frozen=True)
class AsyncWorker:
    """One worker of a pool."""

    index: int
    connected: bool
    _worker: Worker = field(repr=False)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Execute a call on this worker alone; awaiting it gives the result."""
        return _awaitable(self._worker.submit(function, *args, **kwargs))


class AsyncPool:
    """What ``async with spotmpi.pool(...)`` gives; each verb is that of `Pool`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @property
    def id(self) -> str:
        """The id of the run that this pool is."""
        return self._pool.id

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Execute one call on any worker; awaiting it gives the result."""
        return _awaitable(self._pool.submit(function, *args, **kwargs))

    async def map(
        self,
        function: Callable[..., Any],
        *iterables: Iterable[Any],
        buffersize: int | None = None,
        progress: bool | None = None,
    ) -> AsyncIterator[Any]:
        """The results of a call for each item, in the order of the items, as soon as available."""
        calls = self._pool._start_map(function, iterables, buffersize)
        results = calls.results(for_map(function_name(function), iterables, progress))
        try:
            while (result := await asyncio.to_thread(next, results, _END)) is not _END:
                yield result
        finally:
            calls.cancel()  # a thread that nobody waits for any more would hold them until the next result

    async def run(self, function: Callable[..., Any], *args: Any, each: Iterable[Any] | None = None) -> dict[int, Any]:
        """Execute a call once on every worker; the results by the number of the worker."""

        def run() -> dict[int, Any]:
            try:
                return self._pool.run(function, *args, each=each)
            except StopIteration as error:
                raise _replacement(error) from error

        return await asyncio.to_thread(run)

    async def workers(self) -> list[AsyncWorker]:
        """All workers of the pool by number."""
        workers = await asyncio.to_thread(lambda: self._pool.workers)
        return [AsyncWorker(worker.index, worker.connected, worker) for worker in workers]

    async def upload(self, path: str | Path) -> None:
        """Copy a file or folder to every worker, also to those that come later."""
        await asyncio.to_thread(self._pool.upload, path)

    async def scale(self, workers: int) -> None:
        """Change the number of workers."""
        await asyncio.to_thread(self._pool.scale, workers)

    async def collect(self, name: str | None = None) -> Any:
        """The results of calls that an earlier driver left."""
        return await asyncio.to_thread(self._pool.collect, name)

    async def client(self) -> Client:
        """A client of Dask for this event loop; its owner closes it."""
        client: Client = await self._pool._opened().client(asynchronous=True)
        return client

    def __repr__(self) -> str:
        return repr(self._pool)


def _awaitable(call: Call) -> asyncio.Future[Any]:
    """As `asyncio.wrap_future`, which before Python 3.12 never ends for a call that raises StopIteration."""
    outcome: Future[Any] = Future()

    def copy(call: Future[Any]) -> None:
        if call.cancelled() or not outcome.set_running_or_notify_cancel():
            outcome.cancel()
            return
        error = call.exception()
        if error is None:
            outcome.set_result(call.result())
        else:
            outcome.set_exception(_replacement(error) if isinstance(error, StopIteration) else error)

    call.add_done_callback(copy)
    outcome.add_done_callback(lambda done: done.cancelled() and call.cancel())
    return asyncio.wrap_future(outcome)


def _replacement(error: StopIteration) -> RuntimeError:
    """What is raised instead, as for generators: an await would take it for its own end."""
    replacement = RuntimeError(f"the call raised {type(error).__name__}: {error}")
    replacement.__cause__ = error
    return replacement
