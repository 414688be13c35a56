"""Results on their way from the scheduler to the driver: many small ones at once, large ones one after the other."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spotmpi.pools.calls import Call, warn_if_large
from spotmpi.programs.pool.call import result_loader

if TYPE_CHECKING:
    from spotmpi.pools.dask_client import PoolClient, SentCall

_BATCH = 100  # results that are fetched together at most
_BATCH_BYTES = 32 << 20  # of the results of a batch, if they are as large as those before
_MANY = 100  # calls in flight, from which results are fetched less often
_PAUSE = 0.1  # seconds that a result then waits for others at most
_CUT = (OSError, asyncio.CancelledError)  # Dask raises the latter in whoever waits for a connection that it closes


class ResultFetcher:
    """Fetches results of finished calls in the engine's thread, and ends each call by *finish*.

    *is_current* says whether a client is in use, *on_disconnect* learns that its connection broke, and *in_flight*
    gives the number of calls that are not done.
    """

    def __init__(
        self,
        is_current: Callable[[PoolClient], bool],
        on_disconnect: Callable[[PoolClient], None],
        finish: Callable[..., None],
        in_flight: Callable[[], int],
    ) -> None:
        self._is_current, self._on_disconnect = is_current, on_disconnect
        self._finish, self._in_flight = finish, in_flight
        self._ready: collections.deque[SentCall] = collections.deque()
        self._batch = 1  # results that are fetched together now
        self._task: asyncio.Task[None] | None = None

    def fetch(self, sent: SentCall, client: PoolClient) -> None:
        """Fetch the result of one call, with those of others."""
        self._ready.append(sent)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(client))

    def forget(self) -> None:
        """Fetch none of those that are ready: the connection has ended."""
        self._ready.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    async def _run(self, client: PoolClient) -> None:
        try:
            while self._ready and self._is_current(client):
                # More results may come while many calls are in flight, and each fetch costs the scheduler a round
                # trip.
                end = time.monotonic() + _PAUSE
                while self._in_flight() > _MANY and len(self._ready) < self._batch // 2 and time.monotonic() < end:
                    await asyncio.sleep(_PAUSE / 10)
                await self._fetch_batch(client)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _fetch_batch(self, client: PoolClient) -> None:
        batch = [self._ready.popleft() for _ in range(min(len(self._ready), self._batch))]
        try:
            results = await client.fetch(batch)
        except _CUT:
            self._on_disconnect(client)
        except Exception:
            await self._fetch_singly(client, batch)
        else:
            largest = max((len(result) for result in results), default=1)
            self._batch = max(1, min(_BATCH, 4 * self._batch, _BATCH_BYTES // max(1, largest)))
            for (call, future), result in zip(batch, results, strict=True):
                self.deliver(call, future, result)
        finally:
            batch.clear()  # the error has this frame, and may itself live on until garbage is collected

    async def _fetch_singly(self, client: PoolClient, batch: list[SentCall]) -> None:
        """Fetch results one after the other, since one of them could not be fetched."""
        while batch:
            single = [batch.pop(0)]
            try:
                result = await client.fetch(single)
            except _CUT:
                self._on_disconnect(client)
                return
            except Exception as error:
                if not self._is_current(client):
                    return
                self._finish(*single[0], error=error.with_traceback(None))
            else:
                self.deliver(*single[0], result[0])
            finally:
                single.clear()  # as in `_fetch_batch`

    def deliver(self, call: Call, future: Any, packed: bytes) -> None:
        """End a call with its result."""
        call.received = len(packed)
        try:
            warn_if_large(call.received, f"the result of {call.name}")
            value = result_loader(packed)()
        except BaseException as error:  # a module that is imported may exit, and a warning may be an error
            # Without this frame, which has the call: nobody would release one that has itself.
            own = error.__traceback__ and error.__traceback__.tb_next
            self._finish(call, future, error=error.with_traceback(own))
        else:
            self._finish(call, future, value)
