"""A driver's connection to the scheduler of its pool: made, found cut, and made again while the pool may still answer.

All of it runs in the thread of the engine, which has the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from spotmpi.agent import protocol
from spotmpi.pools.errors import PoolError, PoolLost

if TYPE_CHECKING:
    from spotmpi.pools.dask_client import Output, PoolClient

T = TypeVar("T")
Probe = Callable[[], "str | None"]  # why the pool is lost, or None where it may answer again

LOSS_TIMEOUT = 12.0  # seconds without an answer after which a pool counts as lost, or without any worker at the least
CLOSE_TIMEOUT = 5.0  # seconds for the end of a connection
CHECK = 1.0  # seconds between checks of the connection
CLOSED = "the pool is closed: spotmpi.pool(...) opens another"
ANY = (Exception, asyncio.CancelledError)  # Dask raises the latter in whoever waits for a connection that it closes
JOIN_TIMEOUT = 30.0  # seconds for which drivers that join or leave ask a scheduler that does not answer
RETRY = 0.1  # seconds before a question is asked again after a cut


class SchedulerConnection:
    """The connection of *driver* to the scheduler at *url*, with the certificates in the folder *tls*.

    *echo* gets a message when calls wait for workers or for the scheduler. Once the pool is lost, `failure` has the
    reason; an owner that sets `closed` wants no other connection.
    """

    client: PoolClient

    def __init__(
        self, url: str, tls: str, driver: str, output: Output | None, probe: Probe | None, echo: Callable[[str], None]
    ) -> None:
        self.url, self.tls, self.driver = url, tls, driver
        self._output, self._probe, self._echo = output, probe, echo
        self.connected = self.closed = False
        self.failure: str | None = None
        self.description: dict[str, Any] = {}  # of the pool at the first answer; see `Engine.workers`
        self._cut = asyncio.Event()  # set when the connection has broken
        self._last_answer = self._last_worker = time.monotonic()
        self._joined = 0  # workers that had joined at the latest answer
        self._awaits_workers = False  # and has reported it
        self._absent: dict[int, float] = {}  # since when workers that calls wait for are absent; inf: reported
        self._occupied: float | None = None  # since when cancelled calls occupy all workers; inf: reported

    def require_usable(self) -> None:
        """Raise why there is no connection any more: the pool is lost or closed."""
        if self.failure is not None:
            raise PoolLost(self.failure)
        if self.closed:
            raise PoolError(CLOSED)

    def is_current(self, client: PoolClient) -> bool:
        """Whether a client is the one in use, and connected as far as is known."""
        return client is self.client and self.connected and client.connected and not self._cut.is_set()

    @property
    def patience(self) -> float:
        """The seconds for which to ask a scheduler that does not answer: longer where its run tells whether it may."""
        return LOSS_TIMEOUT if self._probe is None else JOIN_TIMEOUT

    @property
    def is_up(self) -> bool:
        """Whether the client in use is connected as far as is known."""
        return self.connected and self.is_current(self.client)

    def on_disconnect(self, client: PoolClient) -> None:
        """Have `monitor` connect again, since *client* has found its connection broken."""
        if client is self.client:
            self._cut.set()

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            PoolError: versions that differ.
            PoolLost: nobody answers, or not to these certificates.
        """
        from spotmpi.programs.pool.settings import version_difference, versions

        begin = time.monotonic()
        while True:
            try:
                self.description = await self.connect()
                break
            except Exception as error:
                waits = time.monotonic() - begin < JOIN_TIMEOUT
                if self._probe is None or not waits or not isinstance(error, OSError) or _is_refusal(error):
                    raise PoolLost(_refusal(self.url, error)) from error
                if (reason := (await self.ask_probe())[0]) is not None:
                    raise PoolLost(f"the pool is lost: {reason}") from error
            await self.shut()
            await asyncio.sleep(RETRY)
        difference = version_difference(versions(), self.description["versions"])
        if difference:
            await self.client.close()
            raise PoolError(f"this driver is not compatible with the pool: {difference}; use the pool's versions here")

    async def connect(self) -> dict[str, Any]:
        """Connect, and ask the scheduler for what `Engine.workers` gives."""
        from spotmpi.pools.dask_client import PoolClient

        self._cut.clear()
        self.client = await PoolClient(self.url, self.tls, self.driver, self._cut.set)
        self.connected = True
        if self._output is not None:
            self.client.show(self._output)
        return await self._describe()

    async def shut(self) -> None:
        """End the connection, if there is one."""
        self.connected = False
        with contextlib.suppress(*ANY, AttributeError):  # there may have been none
            await asyncio.wait_for(self.client.shut(), CLOSE_TIMEOUT)

    async def answer(self, ask: Callable[[PoolClient], Awaitable[T]]) -> T:
        """What the scheduler answers; asks again on a new connection where this one is cut meanwhile."""
        while True:
            self.require_usable()
            client = self.client
            if self.is_current(client):
                try:
                    return await ask(client)
                except ANY:
                    if self.is_current(client):
                        raise
            await asyncio.sleep(RETRY)

    async def states(self) -> dict[str, str]:
        """What `Engine.states` gives, asked once."""
        states: dict[str, str] = await asyncio.wait_for(self.client.ask("calls", driver=self.driver), LOSS_TIMEOUT / 2)
        return states

    async def monitor(
        self, resume: Callable[[], Awaitable[None]], awaited: Callable[[], Collection[int | None]]
    ) -> str | None:
        """Check the connection until the pool is closed or lost; the reason of a loss.

        *resume* is called on each new connection. *awaited* gives the workers that calls wait for, None for any.
        """
        lost: str | None = None
        while not self.closed and lost is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._cut.wait(), CHECK)
            try:
                if not self.is_up:
                    raise OSError("the connection to the scheduler was closed")
                lost = await self.check_workers(await self._describe(), awaited())
            except ANY as error:  # whatever it is: without this task nobody would notice a loss
                if not self.closed:
                    lost = await self._reconnect(error, resume)
        return lost

    async def check_workers(self, description: dict[str, Any], awaited: Collection[int | None]) -> str | None:
        """The reason if all workers are lost; says so where calls have to wait for some."""
        before, self._joined = self._joined, description["joined"]
        self._check_absent(set(awaited) - {None, *description["workers"]})
        occupied = set(description["occupied"])
        self._check_occupied(bool(awaited and occupied) and occupied >= description["workers"].keys(), len(occupied))
        came = description["workers"] or self._joined != before  # one that joined may have left again
        if came or not awaited or not self._joined:  # the first workers may have to wait for their nodes
            self._last_worker, self._awaits_workers = time.monotonic(), False
            return None
        limit = max(description["replacement_limit"] or 0.0, LOSS_TIMEOUT)
        seconds, size = time.monotonic() - self._last_worker, description["size"]
        workers = "the only worker is" if size == 1 else f"all {size} workers are"
        if seconds > limit:
            return (await self.ask_probe())[0] or f"nodes 1 to {size}: {workers} lost for {limit:g} s"
        if seconds > LOSS_TIMEOUT and not self._awaits_workers:
            self._awaits_workers = True
            self.report(f"{workers} lost; calls wait up to {protocol.duration(limit)} (limits.start) for replacements")
        return None

    def _check_absent(self, absent: Iterable[int | None]) -> None:
        """Say so where calls wait for one worker that has not been connected for a while."""
        now = time.monotonic()
        numbers = sorted(worker for worker in absent if worker is not None)
        self._absent = {worker: self._absent.get(worker, now) for worker in numbers}
        late = [worker for worker, since in self._absent.items() if now - since > LOSS_TIMEOUT]
        self._absent.update(dict.fromkeys(late, math.inf))
        if late:
            workers = f"worker {late[0]} is" if len(late) == 1 else f"workers {', '.join(map(str, late))} are"
            self.report(f"{workers} not connected; the calls that were sent there wait for that")

    def _check_occupied(self, occupied: bool, count: int) -> None:
        """Say so where calls have waited for a while for *count* workers that execute cancelled calls, which is all."""
        now = time.monotonic()
        if not occupied:
            self._occupied = None
        elif self._occupied is None:
            self._occupied = now
        elif now - self._occupied > LOSS_TIMEOUT:
            self._occupied = math.inf
            only = "the only worker still executes a call that was cancelled; others wait until it has ended"
            every = f"all {count} workers still execute calls that were cancelled; others wait until one has ended"
            self.report(only if count == 1 else every)

    async def _describe(self) -> dict[str, Any]:
        description: dict[str, Any] = await asyncio.wait_for(self.client.ask("pool"), LOSS_TIMEOUT / 2)
        self._last_answer = time.monotonic()
        return description

    async def _reconnect(self, error: BaseException, resume: Callable[[], Awaitable[None]]) -> str | None:
        """Reconnect, for as long as the pool may answer again; the reason where it may not."""
        reported, last_answer = False, self._last_answer  # that of `connect` alone does not end the wait
        while not self.closed:
            await self.shut()
            try:
                description = await self.connect()
                if description["id"] != self.description["id"]:
                    return "node 0: another scheduler took over, and the calls of the old one are lost"
                await resume()
                return None
            except ANY as failure:
                error = failure if isinstance(failure, OSError) else error
            reason, probe_error = await self.ask_probe()
            silent = time.monotonic() - last_answer > LOSS_TIMEOUT
            if reason is None and silent and (self._probe is None or probe_error is not None):
                addition = "" if probe_error is None else f", and the state of its run cannot be read: {probe_error}"
                reason = f"node 0: the scheduler does not answer: {_text(error)}{addition}"
            if reason is not None:
                return reason
            if silent and not reported:
                reported = True
                text = _text(error)
                self.report(f"the scheduler does not answer ({text}); calls wait until it does, or its run has ended")
            await asyncio.sleep(CHECK)
        return None

    async def ask_probe(self) -> tuple[str | None, Exception | None]:
        """Why the pool is lost as its backend knows, or None; and why that could not be found out."""
        if self._probe is None:
            return None, None
        try:
            return await asyncio.to_thread(self._probe), None
        except Exception as error:  # as of a disk
            return None, error

    def report(self, reason: str) -> None:
        """Say what is waited for."""
        with contextlib.suppress(Exception):  # stderr may be closed
            self._echo(f"waiting: {reason}")


def _refusal(url: str, error: Exception) -> str:
    """Why the scheduler at *url* could not be used."""
    if _is_refusal(error):
        return f"the scheduler at {url} refused this driver: its certificates are not those of the run"
    return f"the scheduler at {url} does not answer: {_text(error)}"


def _text(error: BaseException) -> str:
    """What an error says; that of a question without an answer in time is without words."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether TLS failed; its kind says so, since a text has the name of the host, such as resnet-ssl-1."""
    while error is not None and not isinstance(error, ssl.SSLError):
        # Dask raises that of an unknown authority without its cause, and Tornado has it as an attribute.
        error = getattr(error, "real_error", None) or error.__cause__ or error.__context__
    return error is not None
