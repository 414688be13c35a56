"""The engine of a pool on the driver's side: sends calls, and finds them again after a cut connection.

The client lives in a thread of its own. When its connection breaks, calls under way are found again by their keys once
there is a new one: those that the scheduler still has are collected, the others sent again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

from spotmpi.pools.calls import LARGE, Call
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.pools.progress import print_message

if TYPE_CHECKING:
    from distributed import Client, Future

    from spotmpi.pools.dask_client import Output, PoolClient, SentCall

    DaskFuture = Future[Any]

T = TypeVar("T")
Probe = Callable[[], "str | None"]  # why the pool is lost, or None where it may answer again

LOSS_TIMEOUT = 12.0  # seconds without an answer after which a pool counts as lost, or without any worker at the least
_CLOSE_TIMEOUT = 5.0  # seconds for the end of a connection
_CHECK = 1.0  # seconds between checks of the connection
_BATCH = 100  # results that are fetched together
_MANY = 100  # calls under way, from which results are fetched less often
_PAUSE = 0.1  # seconds that a result then waits for others at most


class Engine:
    """A connection to the scheduler at *url*, with the certificates in the folder *tls*.

    *say* gets a message when calls wait for replacements of all workers; by default it is printed.

    Raises:
        PoolError: versions that differ.
        PoolLost: nobody answers, or not to these certificates.
    """

    def __init__(
        self,
        url: str,
        tls: str,
        output: Output | None = None,
        probe: Probe | None = None,
        say: Callable[[str], None] = print_message,
    ) -> None:
        self.url, self.tls = url, tls
        self._output, self._probe, self._say = output, probe, say
        self._outbox: collections.deque[Call] = collections.deque()
        self._calls: dict[str, Call] = {}  # under way, by key
        self._futures: dict[str, DaskFuture] = {}  # of the calls under way, by key
        self._collected: set[str] = set()  # keys of other drivers' calls; their release takes a moment to arrive
        self._released: collections.deque[str] = collections.deque()  # keys that the scheduler need not hold any more
        self._ready: collections.deque[SentCall] = collections.deque()
        self._fetching = self._connected = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: PoolClient
        self._failure: str | None = None
        self._last_answer = self._last_worker = time.monotonic()
        self._joined = 0  # workers that had joined at the latest answer
        self._awaits_workers = False  # and has said so
        self._cut = asyncio.Event()  # set when the connection has broken
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="spotmpi-pool", daemon=True)
        self._thread.start()
        try:
            self.description = self._wait(self._open())
        except BaseException:
            self.close()
            raise

    def submit(self, calls: Iterable[Call]) -> None:
        """Send calls; each is done once its result, or what it raised, is here."""
        if self._failure is not None:
            raise PoolLost(self._failure)
        if self._closed:
            raise PoolError("the pool is closed: spotmpi.pool(...) opens another")
        if os.getpid() != self._process:
            raise PoolError("a forked process cannot use its parent's pool: join it there with spotmpi.pool('ID')")
        empty = not self._outbox
        self._outbox.extend(calls)
        if empty:
            self._loop.call_soon_threadsafe(self._send)

    def under_way(self) -> int:
        """The number of calls that are not done."""
        return len(self._calls) + len(self._outbox)

    def states(self) -> dict[str, str]:
        """The state of every call that the scheduler holds, of any driver, by key."""
        return self._wait(self._states())

    def workers(self) -> dict[str, Any]:
        """What the scheduler says of the pool: ``size``, and ``workers`` that are connected, by number."""
        return self._wait(self._describe())

    def set_size(self, workers: int) -> None:
        """Set the desired number of workers on the scheduler."""
        self._wait(self._client.ask("size", workers=workers))

    def dashboard(self) -> int:
        """The port of 127.0.0.1 on node 0 at which Dask shows its dashboard from now on.

        Raises:
            PoolError: the pool has no bokeh.
        """
        answer: dict[str, Any] = self._wait(self._client.ask("dashboard"))
        if "port" not in answer:
            remedy = "add bokeh to the image of the run, or to this environment for a run without image"
            raise PoolError(f"Dask's dashboard cannot be shown: {answer['failure']}; {remedy}")
        return int(answer["port"])

    def upload(self, name: str, contents: dict[str, bytes]) -> None:
        """Write files to every worker's folder, also to those of workers that come later."""
        from spotmpi.programs.pool.files import UploadedFiles

        self._wait(self._client.upload(UploadedFiles(name, contents, time.time())))

    def client(self) -> Client:
        """A client of Dask of its own, for the calling thread."""
        from spotmpi.pools.dask_client import plain_client

        return plain_client(self.url, self.tls)

    async def async_client(self) -> Client:
        """A client of Dask of its own, for the calling event loop."""
        from spotmpi.pools.dask_client import plain_async_client

        return await plain_async_client(self.url, self.tls)

    def close(self) -> None:
        """End the connection; calls that are under way raise PoolError."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            self._wait(self._shut_down(), timeout=_CLOSE_TIMEOUT)
        # Timeouts of Dask's last messages may pass before it has read them: asyncio would print each on stderr.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run *work* in the engine's thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    # What follows runs in the engine's thread.

    async def _open(self) -> dict[str, Any]:
        from spotmpi.programs.pool.settings import version_difference, versions

        try:
            await self._connect()
            description = await self._describe()
        except Exception as error:
            raise PoolLost(_refusal(self.url, error)) from error
        difference = version_difference(versions(), description["versions"])
        if difference:
            await self._client.close()
            raise PoolError(f"this driver is not compatible with the pool: {difference}; use the pool's versions here")
        self._start_task(self._monitor())
        return description

    async def _connect(self) -> None:
        from spotmpi.pools.dask_client import PoolClient

        self._cut.clear()
        self._client = await PoolClient(self.url, self.tls, self._cut.set)
        self._connected = True
        self._last_answer = time.monotonic()
        if self._output is not None:
            self._client.show(self._output)

    async def _describe(self) -> dict[str, Any]:
        description: dict[str, Any] = await self._client.ask("pool")
        return description

    async def _states(self) -> dict[str, str]:
        states: dict[str, str] = await self._client.ask("calls")
        return {key: state for key, state in states.items() if key not in self._collected}

    def _send(self) -> None:
        """Send what is in the outbox, calls of the same kind together."""
        if not self._connected:
            return  # `_resume` does it
        calls = [self._outbox.popleft() for _ in range(len(self._outbox))]
        kinds: dict[tuple[bool, int | None, bool], list[Call]] = {}
        for call in calls:
            kinds.setdefault((call.asynchronous, call.worker, not call.payload), []).append(call)
        for (asynchronous, worker, foreign), group in kinds.items():
            for call in group:
                self._calls[call.key] = call
                call.add_done_callback(self._release_cancelled)
            try:
                sent = self._client.attach(group) if foreign else self._client.send(group, asynchronous, worker)
            except Exception as error:
                for call in group:
                    self._finish(call, None, error=error)
            else:
                self._watch_all(sent)

    def _watch_all(self, sent: Iterable[SentCall]) -> None:
        for call, future in sent:
            self._futures[call.key] = future
            self._start_task(self._watch(call, future, self._client))

    async def _watch(self, call: Call, future: DaskFuture, client: PoolClient) -> None:
        from spotmpi.pools.dask_client import remote_error, status_of

        status, error, traceback = await status_of(future)
        current = client is self._client and self._connected and not self._cut.is_set()
        if self._calls.get(call.key) is not call or not current:
            return  # cancelled, or the connection is lost: `_resume` watches it again
        if status == "finished":
            self._ready.append((call, future))
            if not self._fetching:
                self._fetching = True
                self._start_task(self._fetch())
        elif status == "error":
            self._finish(call, future, error=remote_error(call, error, traceback))
        elif client.connected:
            self._finish(
                call, future, error=PoolError(f"the call of {call.name} is gone: another driver has collected it")
            )

    async def _fetch(self) -> None:
        """Fetch the results of finished calls, many at once; those that finish meanwhile come with the next."""
        try:
            while self._ready:
                await self._gather_results()
                batch = [self._ready.popleft() for _ in range(min(len(self._ready), _BATCH))]
                try:
                    results = await self._client.fetch(batch)
                except Exception as error:
                    if not self._connected or not self._client.connected:
                        return
                    await self._fetch_singly(batch, error)
                    continue
                for (call, future), result in zip(batch, results, strict=True):
                    self._deliver(call, future, result)
        finally:
            self._fetching = False

    async def _gather_results(self) -> None:
        """Wait shortly for more results while many calls are under way: each fetch costs the scheduler a round trip."""
        end = time.monotonic() + _PAUSE
        while len(self._calls) > _MANY and len(self._ready) < _BATCH // 2 and time.monotonic() < end:
            await asyncio.sleep(_PAUSE / 10)

    async def _fetch_singly(self, batch: list[SentCall], error: Exception) -> None:
        """Fetch results one after the other, since one of them could not be fetched."""
        for call, future in batch:
            try:
                result = await self._client.fetch([(call, future)]) if len(batch) > 1 else [None]
            except Exception as own:
                self._finish(call, future, error=own)
            else:
                if len(batch) > 1:
                    self._deliver(call, future, result[0])
                else:
                    self._finish(call, future, error=error)

    def _deliver(self, call: Call, future: DaskFuture, result: Any) -> None:
        warn_if_large(len(result), f"the result of {call.name}")
        try:
            value = pickle.loads(result)
        except BaseException as error:  # a module that is imported may exit
            self._finish(call, future, error=error)
        else:
            self._finish(call, future, value)

    def _finish(self, call: Call, future: DaskFuture | None, result: Any = None, error: Any = None) -> None:
        self._calls.pop(call.key, None)
        future = self._futures.pop(call.key, None) or future
        if future is not None:
            future.release()
        if not call.done() and call.set_running_or_notify_cancel():
            if error is not None:
                call.set_exception(error)
            else:
                call.set_result(result)
        if not call.payload:
            self._collected.add(call.key)
        if call.payload and not call.cancelled():
            # The result stays in the pool for as long as this process has the call: should it die, another collects it.
            weakref.finalize(call, self._let_go, call.key).atexit = False
        else:
            self._let_go(call.key)

    def _let_go(self, key: str) -> None:
        """Release what the scheduler holds of a call; from any thread."""
        first = not self._released
        self._released.append(key)
        if first and not self._closed:
            self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if not self._connected or self._cut.is_set():
            return  # `_resume` does it
        self._client.let_go([self._released.popleft() for _ in range(len(self._released))])

    def _release_cancelled(self, call: futures.Future[Any]) -> None:
        assert isinstance(call, Call)
        if call.cancelled() and not self._closed:
            self._loop.call_soon_threadsafe(self._finish, call, None)

    async def _monitor(self) -> None:
        """Check the connection until the pool is closed or lost."""
        while not self._closed and self._failure is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._cut.wait(), _CHECK)
            try:
                if self._cut.is_set() or not self._client.connected:
                    raise OSError("the connection to the scheduler was closed")
                description = await asyncio.wait_for(self._describe(), LOSS_TIMEOUT / 2)
                self._last_answer = time.monotonic()
                await self._check_workers(description)
            except (TimeoutError, OSError) as error:
                if not self._closed:
                    await self._reconnect(error)

    async def _check_workers(self, description: dict[str, Any]) -> None:
        before, self._joined = self._joined, description["joined"]
        came = description["workers"] or self._joined != before  # one that joined may have left again
        if came or not self._calls or not self._joined:  # the first workers may have to wait for their nodes
            self._last_worker, self._awaits_workers = time.monotonic(), False
            return
        limit = max(description.get("replacement_limit") or 0.0, LOSS_TIMEOUT)  # none from an older spotmpi
        seconds, size = time.monotonic() - self._last_worker, description["size"]
        if seconds > limit:
            self._lose(await self._ask() or f"nodes 1 to {size}: all {size} workers are lost for {limit:g}s")
        elif seconds > LOSS_TIMEOUT and not self._awaits_workers:
            self._awaits_workers = True
            workers = "the only worker is" if size == 1 else f"all {size} workers are"
            self._say(f"waiting: {workers} lost; calls wait up to {limit:g}s (limits.start) for replacements")

    async def _ask(self) -> str | None:
        """Why the pool is lost as its backend knows, or None."""
        return await asyncio.to_thread(self._probe) if self._probe is not None else None

    async def _reconnect(self, error: Exception) -> None:
        """Reconnect, for as long as the pool may answer again."""
        self._connected = False
        old = self._client
        with contextlib.suppress(Exception):
            await asyncio.wait_for(old.shut(), _CLOSE_TIMEOUT)
        while not self._closed:
            try:
                await self._connect()
                description = await self._describe()
            except Exception as failure:
                error = failure if isinstance(failure, OSError) else error
            else:
                if description["id"] != self.description["id"]:
                    self._lose("node 0: another scheduler took over, and the calls of the old one are lost")
                    return
                await self._resume()
                return
            reason = await self._ask()
            if reason is None and self._probe is None and time.monotonic() - self._last_answer > LOSS_TIMEOUT:
                reason = f"node 0: the scheduler does not answer: {error}"
            if reason is not None:
                self._lose(reason)
                return
            await asyncio.sleep(_CHECK)

    async def _resume(self) -> None:
        """Watch the calls that the scheduler still has, and send the others again."""
        states = await self._states()
        under_way = list(self._calls.values())
        self._ready.clear()
        self._watch_all(self._client.attach(call for call in under_way if call.key in states))
        self._outbox.extendleft(reversed([call for call in under_way if call.key not in states and call.payload]))
        for call in under_way:
            if call.key not in states and not call.payload:
                self._finish(call, None, error=PoolError(f"the result of {call.name} is no longer in the pool"))
        self._send()
        self._release()

    def _lose(self, reason: str) -> None:
        self._failure = f"the pool is lost: {reason}"
        for call in [*self._calls.values(), *self._outbox]:
            self._finish(call, None, error=PoolLost(self._failure))
        self._outbox.clear()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut_down(self) -> None:
        for call in [*self._calls.values(), *self._outbox]:
            if not call.done() and call.set_running_or_notify_cancel():
                call.set_exception(PoolError(f"the pool was closed before the call of {call.name} had ended"))
        self._calls.clear()
        for task in self._tasks:
            task.cancel()
        if self._connected:
            self._connected = False
            await self._client.shut()


def import_client() -> None:
    """Import what a connection needs: Dask takes half a second."""
    import spotmpi.pools.dask_client  # noqa: F401


def warn_if_large(size: int, subject: str) -> None:
    """Warn of arguments or a result that should not go through the scheduler."""
    if size > LARGE:
        remedy = "write large data to the run volume and send its path"
        warnings.warn(f"{subject} has {size / 1e6:.0f} MB, which go through the scheduler: {remedy}", stacklevel=2)


def _refusal(url: str, error: Exception) -> str:
    """Why the scheduler at *url* could not be used."""
    text = f"{error} {error.__cause__ or ''}"
    if "certificate" in text.lower() or "ssl" in text.lower():
        return f"the scheduler at {url} refused this driver: its certificates are not those of the run"
    return f"the scheduler at {url} does not answer: {error}"
