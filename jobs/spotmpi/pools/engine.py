"""The engine of a pool on the driver's side: sends calls, and finds them again after a cut connection.

It lives in a thread of its own. When its connection breaks, calls in flight are found again by their keys once there is
a new one: those that the scheduler still has are collected, the others sent again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

from spotmpi.pools.calls import Call
from spotmpi.pools.connection import (
    ANY,
    CHECK,
    CLOSE_TIMEOUT,
    JOIN_TIMEOUT,
    LOSS_TIMEOUT,
    RETRY,
    Probe,
    SchedulerConnection,
)
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.pools.progress import print_message
from spotmpi.pools.results import ResultFetcher
from spotmpi.programs.pool.call import TAKEN

if TYPE_CHECKING:
    from distributed import Client, Future

    from spotmpi.pools.dask_client import Output, PoolClient, SentCall
    from spotmpi.programs.pool.files import File

    DaskFuture = Future[Any]

T = TypeVar("T")

_REJOIN_TIMEOUT = 10.0  # seconds for a connection that a driver makes to close a pool; slow machines took over 3
FORKED = "a forked process cannot use its parent's pool: join it there with spotmpi.pool('ID')"
_COLLECTED = "the call of {} is gone: another driver has collected it"
_SILENCE = 3.0  # seconds without an answer, after which a driver says what it waits for
_UPLOADS = 5  # attempts of an upload
_FORK_TIMEOUT = 1.0  # seconds that a fork waits for the engine's thread, and that for the fork
_UNCONFIRMED = 10_000  # released keys, the latest, that a cut connection may not have carried to the scheduler


def _print_unless_unread(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print as asyncio does, but not a timeout that Dask has not read, as of messages in a connection that broke."""
    if not (isinstance(context.get("exception"), TimeoutError) and isinstance(context.get("future"), asyncio.Future)):
        loop.default_exception_handler(context)


class Engine:
    """A connection to the scheduler at *url*, with the certificates in the folder *tls*.

    *echo* gets a message when calls wait for workers or for the scheduler; by default it is printed. `driver` is the
    name of this driver in the keys of its calls, and no other process or connection has it.

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
        echo: Callable[[str], None] = print_message,
    ) -> None:
        self.driver = secrets.token_hex(8)
        self.connection = SchedulerConnection(url, tls, self.driver, output, probe, echo)
        self._outbox: collections.deque[Call] = collections.deque()
        self._calls: dict[str, Call] = {}  # in flight, by key
        self._futures: dict[str, DaskFuture] = {}  # of the calls in flight, by key
        self._collected: set[str] = set()  # keys of calls of other drivers
        self._held: set[str] = set()  # keys of calls that are done, and that somebody in this process has
        self._released: collections.deque[str] = collections.deque()  # keys that the scheduler need not hold any more
        self._let_go_of: collections.deque[str] = collections.deque(maxlen=_UNCONFIRMED)  # what it was told of them
        self._resumed: PoolClient | None = None  # what was told to earlier ones was told to this one, too
        self._results = ResultFetcher(
            self.connection.is_current, self.connection.on_disconnect, self._finish, self.in_flight
        )
        self._sending = self._releasing = False  # whether the engine's thread is going to do so
        self._tasks: set[asyncio.Task[None]] = set()
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_print_unless_unread)
        self._thread = threading.Thread(target=self._run, name="spotmpi-pool", daemon=True)
        self._thread.start()
        _engines.add(self)
        try:
            self._wait(self._open())
        except BaseException:
            self.close()
            raise

    def submit(self, calls: Iterable[Call]) -> None:
        """Send calls; each is done once its result, or what it raised, is here."""
        self.require_usable()
        for call in calls:
            call.thread = self._thread
            call.add_done_callback(self._release_cancelled)
            self._outbox.append(call)
        if not self._sending:  # `_send` clears it before it looks into the outbox
            self._sending = True
            self._call_soon(self._send)
        if self._is_over:  # meanwhile: nobody looks into the outbox any more
            self._end_all()

    def require_usable(self) -> None:
        """Raise why the engine cannot be used: the pool is lost or closed, or belongs to the parent of this process."""
        self.connection.require_usable()
        if self.is_copy:
            raise PoolError(FORKED)

    @property
    def is_copy(self) -> bool:
        """Whether this process is a fork of the one that opened the pool."""
        return os.getpid() != self._process

    def in_flight(self) -> int:
        """The number of calls that are not done."""
        return len(self._calls) + len(self._outbox)

    def states(self) -> dict[str, str]:
        """The state of every call that the scheduler holds, of any driver, by key; see `CallsPlugin.calls`."""
        return dict(self._ask("calls", driver=self.driver))

    def collect(self, name: str | None) -> list[str]:
        """Take over the calls, of the function *name* or all, whose drivers are not connected any more; their keys."""
        return self._wait(self._collect(name))

    def workers(self) -> dict[str, Any]:
        """What the scheduler says of the pool: ``size``, and ``workers`` that are connected, by number."""
        return dict(self._ask("pool"))

    def set_size(self, workers: int) -> None:
        """Set the desired number of workers on the scheduler."""
        self._ask("size", workers=workers)

    def dashboard(self) -> int:
        """The port of 127.0.0.1 on node 0 at which Dask shows its dashboard from now on.

        Raises:
            PoolError: the pool has no bokeh.
        """
        answer: dict[str, Any] = self._ask("dashboard")
        if "port" not in answer:
            remedy = "add bokeh to the image of the run, or to this environment for a run without image"
            raise PoolError(f"Dask's dashboard cannot be shown: {answer['failure']}; {remedy}")
        return int(answer["port"])

    def upload(self, name: str, files: dict[str, File]) -> None:
        """Write files to every worker's folder, also to those of workers that come later."""
        for attempt in range(_UPLOADS):
            try:
                self._wait(self.connection.answer(lambda client: client.upload(name, files)))
                break
            except OSError:  # a worker ended meanwhile; its replacement gets them
                if attempt == _UPLOADS - 1:
                    raise

    def client(self, asynchronous: bool = False) -> Client:
        """A client of Dask of its own, for the calling thread; an *asynchronous* one for its event loop, to await."""
        from spotmpi.pools.dask_client import plain_client

        return plain_client(self.connection.url, self.connection.tls, asynchronous)

    def close(self, leave: bool = True) -> None:
        """End the connection; calls that are in flight raise PoolError.

        With *leave* the scheduler, which goes on, learns which results this driver has; one that does not answer is
        waited for: others would collect them again.
        """
        if self.connection.closed:
            return
        self.connection.closed = True
        if self.is_copy:
            return  # the loop's files are the parent's too
        inside = threading.current_thread() is self._thread  # as from a callback of a call
        if inside:
            self._start_task(self._shut_down(leave))
        else:
            with contextlib.suppress(Exception):
                self._wait(self._shut_down(leave), timeout=JOIN_TIMEOUT + _REJOIN_TIMEOUT + CLOSE_TIMEOUT)
        self._end_all()  # what came meanwhile, or all of them where the thread is busy
        # Dask may not read the ends of its last messages: asyncio would print each on stderr.
        self._loop.set_exception_handler(lambda loop, context: None)
        if inside:
            self._loop.call_later(CLOSE_TIMEOUT, self._loop.stop)
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()

    def _ask(self, question: str, **arguments: Any) -> Any:
        return self._wait(self.connection.answer(lambda client: client.ask(question, **arguments)))

    def _wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run *work* in the engine's thread and wait for it."""
        if self.is_copy or threading.current_thread() is self._thread:
            work.close()
            raise PoolError(FORKED if self.is_copy else "a callback of a call cannot wait for an answer of the pool")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def _call_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the engine's thread call a function, unless the engine is closed or the copy of a forked process."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if not self.is_copy:
                self._loop.call_soon_threadsafe(function, *arguments)

    def _end_all(self) -> None:
        """End every call with the reason for which the pool can no longer be used; from any thread."""
        ended = [call for key in list(self._calls) if (call := self._calls.pop(key, None)) is not None]
        self._released.extend(call.key for call in ended if call.cancelled())  # before `_finish` has seen that
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._outbox.popleft())
        for call in ended:
            early = f"the pool was closed before the call of {call.name} had ended"
            failure = self.connection.failure
            call.finish(error=PoolLost(failure) if failure is not None else PoolError(early))

    def pause(self, resumed: threading.Event) -> None:
        """Hold the engine's thread between two steps until *resumed*: it must hold no lock while the process forks."""
        if not self.connection.closed and threading.current_thread() is not self._thread:
            paused = threading.Event()

            def rest() -> None:
                paused.set()
                resumed.wait(_FORK_TIMEOUT)

            self._call_soon(rest)
            paused.wait(_FORK_TIMEOUT)

    def abandon(self) -> None:
        """In a forked process, end the copies of the parent's calls."""
        for call in [*self._calls.values(), *self._outbox]:
            call.abandon(PoolError(FORKED))

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        """Run the event loop until it is stopped, also after an exit in what users' code does here."""
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException:
                logging.getLogger(__name__).exception("the pool's thread goes on")

    async def _open(self) -> None:
        await self.connection.open()
        self._resumed = self.connection.client
        self._start_task(self._monitor())

    async def _monitor(self) -> None:
        reason = await self.connection.monitor(self._resume, lambda: {call.worker for call in self._calls.values()})
        if reason is not None:
            self._lose(reason)

    @property
    def _is_over(self) -> bool:
        return self.connection.closed or self.connection.failure is not None

    async def _collect(self, name: str | None) -> list[str]:
        from spotmpi.programs.pool.settings import DRIVER_RETURN

        wait = f"drivers that were cut off may come back for {DRIVER_RETURN:g} s, before others collect their calls"
        saying = self._loop.call_later(_SILENCE, self.connection.report, wait)
        try:
            keys = await self.connection.answer(lambda client: client.ask("collect", driver=self.driver, name=name))
        finally:
            saying.cancel()
        new = [key for key in keys if key not in self._collected]
        self._collected.update(new)
        return new

    def _send(self) -> None:
        """Send what is in the outbox, calls of the same kind together."""
        self._sending = False
        if self._is_over:
            self._end_all()
        if not self.connection.is_up:
            return  # `_resume` does it
        kinds: dict[tuple[bool, int | None, bool], list[Call]] = {}
        while self._outbox:
            call = self._outbox.popleft()
            if call.done():
                call.finish()  # cancelled
            else:
                kinds.setdefault((call.asynchronous, call.worker, not call.payload), []).append(call)
        for (asynchronous, worker, foreign), group in kinds.items():
            self._calls.update((call.key, call) for call in group)
            try:
                client = self.connection.client
                sent = client.attach(group) if foreign else client.send(group, asynchronous, worker)
            except Exception as error:
                for call in group:
                    self._finish(call, None, error=error)
            else:
                self._watch_all(sent)

    def _watch_all(self, sent: Iterable[SentCall]) -> None:
        for call, future in sent:
            self._futures[call.key] = future
            self._start_task(self._watch(call, future, self.connection.client))

    async def _watch(self, call: Call, future: DaskFuture, client: PoolClient) -> None:
        from spotmpi.pools.dask_client import remote_error, status_of

        status, error, traceback = await status_of(future)
        if self._calls.get(call.key) is not call or not self.connection.is_current(client):
            return  # cancelled, or the connection is lost: `_resume` watches it again
        if status == "finished":
            self._results.fetch((call, future), client)
        elif status == "error":
            try:
                own = remote_error(call, error, traceback)
            except BaseException as failure:
                own = failure.with_traceback(None)  # its frames have the call, which would have itself
            self._finish(call, future, error=own)
        else:
            self._finish(call, future, error=PoolError(_COLLECTED.format(call.name)))

    def _finish(self, call: Call, future: DaskFuture | None, result: Any = None, error: Any = None) -> None:
        sent = self._calls.pop(call.key, None) is not None
        future = self._futures.pop(call.key, None) or future
        if future is not None:
            future.release()
        call.finish(result, error)
        if call.payload and not call.cancelled():
            # The result stays in the pool for as long as this process has the call: should it die, another collects it.
            self._held.add(call.key)
            weakref.finalize(call, self._let_go, call.key).atexit = False
        elif sent:
            self._let_go(call.key)

    def _let_go(self, key: str) -> None:
        """Release what the scheduler holds of a call; from any thread."""
        self._held.discard(key)
        self._released.append(key)
        if not self._releasing and not self.connection.closed:
            self._releasing = True
            self._call_soon(self._release)

    def _release(self) -> None:
        self._releasing = False
        if not self.connection.is_up:
            return  # `_resume` does it
        keys = []
        while self._released:
            keys.append(self._released.popleft())
        if keys:
            self._let_go_of.extend(keys)
            self.connection.client.let_go(keys)

    def _release_cancelled(self, call: futures.Future[Any]) -> None:
        assert isinstance(call, Call)
        if call.cancelled():
            self._call_soon(self._finish, call, None)

    async def _resume(self) -> None:
        """Watch the calls that the scheduler still has, and send the others again."""
        states = await self._states()
        self._results.forget()
        for call in list(self._calls.values()):
            if states.get(call.key) == TAKEN:
                del self._calls[call.key]  # it is not this driver's to let go
                call.finish(error=PoolError(_COLLECTED.format(call.name)))
            elif call.key not in states and not call.payload:
                self._finish(call, None, error=PoolError(f"the result of {call.name} is no longer in the pool"))
        known = {key: call for key, call in self._calls.items() if key in states}
        self._watch_all(self.connection.client.attach(known.values()))
        self._outbox.extendleft(call for key, call in reversed(self._calls.items()) if key not in known)
        self._calls = known
        self._send()
        self._release()

    async def _states(self) -> dict[str, str]:
        """What `states` gives; what it has in spite of being released is released again."""
        states = await self.connection.states()
        self._resumed = self.connection.client
        self._released.extend(key for key in self._let_go_of if states.get(key, TAKEN) != TAKEN)
        self._let_go_of.clear()
        return states

    def _lose(self, reason: str) -> None:
        self.connection.failure = f"the pool is lost: {reason}"
        self._end_all()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut_down(self, leave: bool) -> None:
        self._end_all()
        self._results.forget()
        connection = self.connection
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CHECK)
        self._released.extend(list(self._held))  # a driver that closes the pool keeps what it has got
        begin, said = time.monotonic(), False
        while leave and connection.failure is None and not await self._leave():
            waited = time.monotonic() - begin
            if waited > connection.patience or (await connection.ask_probe())[0] is not None:
                break
            if waited > LOSS_TIMEOUT and not said:
                said = True
                limit = f"closing the pool waits for it up to {connection.patience:g} s"
                connection.report(f"the scheduler does not answer; {limit}, since others could collect results again")
            await asyncio.sleep(RETRY)
        await connection.shut()

    async def _leave(self) -> bool:
        """Tell the scheduler what it need not hold, and that this driver leaves; whether that is done, or needless."""
        owes = bool(self._released or self._let_go_of)
        with contextlib.suppress(*ANY):
            if owes:
                await asyncio.wait_for(self._rejoin(), _REJOIN_TIMEOUT)
            if self.connection.is_up:
                self._release()
                await asyncio.wait_for(self.connection.client.leave(self.driver), CHECK)
                return True
        await self.connection.shut()
        return not owes

    async def _rejoin(self) -> None:
        """Have a connection on which all that an earlier one may have lost is sent again."""
        if not self.connection.is_up:
            await self.connection.connect()
        if self._resumed is not self.connection.client:  # the driver closes the pool while `_resume` is under way
            await self._states()


def _pause_all() -> None:
    """Before a fork: a lock of Dask that an engine's thread holds then would stay locked in the forked process."""
    _forking.resumed = threading.Event()
    for engine in list(_engines):
        if not engine.is_copy:
            engine.pause(_forking.resumed)


def _resume_all() -> None:
    _forking.resumed.set()


def _abandon_all() -> None:
    for engine in list(_engines):
        engine.abandon()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_forking = threading.local()  # what engines wait for, of each thread that forks
os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_abandon_all)


def import_client() -> None:
    """Import what a connection needs: Dask takes half a second."""
    import spotmpi.pools.dask_client  # noqa: F401
