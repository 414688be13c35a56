"""Dask's client as a pool uses it; nothing else of the driver's side knows Dask.

A cut connection is reported instead of mended: Dask would cancel all futures and connect again, and the engine has to
find its calls meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import distributed.utils
from distributed import Client, Future
from distributed.comm.core import CommClosedError
from distributed.core import clean_exception
from distributed.scheduler import KilledWorker

from spotmpi.agent.protocol import counted
from spotmpi.pools.calls import Call
from spotmpi.pools.errors import PoolError
from spotmpi.programs.pool.call import CallAborted, CallFailure, execute, execute_async, result_loader
from spotmpi.programs.pool.files import File, pack
from spotmpi.programs.pool.output import TOPIC
from spotmpi.programs.pool.settings import quiet_loggers, resource, security, use_steady_time

CONNECT_TIMEOUT = 5.0  # seconds for one connection

Output = Callable[[int, str, Sequence[str]], None]  # of a worker: its number, the stream and the lines
SentCall = tuple[Call, "Future[Any]"]


def _replace_executor() -> None:
    """In a forked process: Dask's thread for large messages has not been copied, and its executor would wait for it."""
    distributed.utils._offload_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="Dask-Offload")


os.register_at_fork(after_in_child=_replace_executor)


class PoolClient(Client):
    """A client that calls *on_cut* when its connection breaks, and is of no use after that.

    The scheduler knows the *driver* by the client's name.
    """

    def __init__(self, url: str, tls: str, driver: str, on_cut: Callable[[], None]) -> None:
        self._on_cut = on_cut
        use_steady_time()
        quiet_loggers()
        super().__init__(  # type: ignore[no-untyped-call]
            url,
            name=driver,
            asynchronous=True,
            set_as_default=False,
            security=security(tls),
            timeout=CONNECT_TIMEOUT,
            direct_to_workers=False,
        )

    async def _reconnect(self) -> None:
        self.scheduler_comm = None  # ends the reader of messages
        self._on_cut()

    def _send_to_scheduler_safe(self, msg: dict[str, Any]) -> None:
        with contextlib.suppress(CommClosedError):  # the cut is reported by the reader
            super()._send_to_scheduler_safe(msg)  # type: ignore[no-untyped-call]

    def show(self, output: Output) -> None:
        """Pass what workers print to *output* from now on."""

        def handle(event: tuple[float, Any]) -> None:
            with contextlib.suppress(OSError, ValueError):  # stdout may be closed, and Dask would log each of them
                output(event[1]["index"], event[1]["stream"], event[1]["lines"])

        self.subscribe_topic(TOPIC, handle)

    async def ask(self, question: str, **arguments: Any) -> Any:
        """The answer of a handler that `programs/pool/scheduler.py` has added to Dask's.

        Questions have connections besides that of calls. Where none can be made, as to a scheduler that is frozen, or
        one breaks, that is reported as a cut. Errors of handlers that a system call raised have a number.
        """
        assert self.scheduler is not None
        try:
            return await getattr(self.scheduler, f"spotmpi_{question}")(**arguments)
        except OSError as error:
            if error.errno is None:
                self._on_cut()
            raise

    def send(self, calls: list[Call], asynchronous: bool, worker: int | None) -> list[SentCall]:
        """Send calls of one kind."""
        # Dask's warning of large graphs does not say what to do; the pool's own does.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            futures = self.map(
                execute_async if asynchronous else execute,
                [call.payload for call in calls],
                key=[call.key for call in calls],
                pure=False,
                resources=None if worker is None else {resource(worker): 1},
            )
        return list(zip(calls, futures, strict=True))

    def attach(self, calls: Iterable[Call]) -> list[SentCall]:
        """Attach to calls that the scheduler has already; those that it does not know are cancelled."""
        sent: list[SentCall] = [(call, Future(call.key, self)) for call in calls]
        keys = [call.key for call, _ in sent]
        self._send_to_scheduler({"op": "client-desires-keys", "keys": keys, "client": self.id})
        for key in keys:
            self._send_to_scheduler({"op": "report-key", "key": key})
        return sent

    def let_go(self, keys: list[str]) -> None:
        """Tell the scheduler that it need not hold calls any more."""
        if self.connected:
            self._send_to_scheduler({"op": "spotmpi-release", "keys": keys})

    async def leave(self, driver: str) -> None:
        """Tell the scheduler that the driver closes the pool, after all else; wait until it knows."""
        self._send_to_scheduler({"op": "spotmpi-leave", "driver": driver})
        await self.ask("left", driver=driver)

    @property
    def connected(self) -> bool:
        """Whether the connection is up, as far as is known here."""
        reader = self._handle_report_task  # an error of it is only logged
        up = bool(self.status == "running") and self.scheduler_comm is not None
        return up and reader is not None and not reader.done()

    async def upload(self, name: str, files: dict[str, File]) -> None:
        """Write files to every worker, also to those that come later; raises what a worker could not do."""
        key, packed = pack(name, files)
        for answer in (await self.ask("upload", key=key, packed=packed)).values():
            if answer["status"] == "error":
                _, error, traceback = clean_exception(answer["exception"], answer["traceback"])
                assert error is not None
                raise error.with_traceback(traceback)

    async def fetch(self, sent: list[SentCall]) -> list[Any]:
        """The packed results of finished calls."""
        results: list[Any] = await self.gather([future for _, future in sent], asynchronous=True)
        return results

    async def shut(self) -> None:
        """End the connection without waiting for the scheduler."""
        await self._close(fast=True)


async def status_of(future: Future[Any]) -> tuple[str, Any, Any]:
    """Wait until a call is done: ``finished``, ``error`` with exception and traceback, or ``cancelled``.

    A result that was lost with its worker at once is not done any more when the waiter wakes up.
    """
    state = future._state
    assert state is not None
    while state.status not in ("finished", "error", "cancelled"):
        await state.wait()
    return state.status, state.exception, state.traceback


def plain_client(url: str, tls: str, asynchronous: bool) -> Client:
    """A client of Dask for the calling thread; an *asynchronous* one is for its event loop, and is awaited first."""
    return Client(url, security=security(tls), set_as_default=False, asynchronous=asynchronous, timeout=CONNECT_TIMEOUT)


def remote_error(call: Call, error: Any, traceback: Any) -> BaseException:
    """What a call raised, with the traceback of the worker; Dask's own error for lost workers in our words."""
    if isinstance(error, KilledWorker):
        times = counted(error.allowed_failures + 1, "time")
        return CallAborted(f"a call of {call.name} lost its worker {times} (limits.interruptions); it is not retried")
    if isinstance(error, CallFailure):
        return _load_error(call, error)
    assert isinstance(error, BaseException)
    return error.with_traceback(traceback)


def _load_error(call: Call, failure: CallFailure) -> BaseException:
    """What a call raised; where this process cannot load it, a PoolError with its text and traceback."""
    reason = "it cannot be pickled"
    try:
        if failure.packed:
            error = result_loader(failure.packed)()
            if isinstance(error, BaseException):
                return error
    except BaseException as own:  # a module that is imported may exit
        reason = str(own)
    return PoolError(f"a call of {call.name} raised an error that this driver cannot load ({reason}):\n{failure.text}")
