"""The connection of a rank to the workers of its stream: a thin layer over Dask's client."""

from __future__ import annotations

import itertools
import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from spotmpi.programs.pool.settings import security
from spotmpi.streams.errors import SourceError, StreamError, StreamLost

if TYPE_CHECKING:
    from distributed.client import Future

# Seconds for a result, which include its preparation; the last tries leave time for large ones.
_FETCH_TIMEOUTS = (*(6 * [5]), *(10 * 2**times for times in range(12)))
_CONNECT_TIMEOUT = 60  # seconds to reach the scheduler


class Task(Protocol):
    """A call that a worker executes."""

    def result(self) -> Any:
        """Its result; waits for it, and forgets it on the worker."""
        ...

    def cancel(self) -> None:
        """Forget it."""
        ...


class Engine:
    """Calls of functions on the workers of the scheduler at *url*; results come from workers directly."""

    def __init__(self, url: str, tls: str) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            remedy = 'install spotmpi for it, or name an image that has it, such as image = "pytorch"'
            raise StreamError(f"{sys.executable} has no module {error.name}, which streams need: {remedy}") from None
        try:
            self._client = Client(
                url, security=security(tls), set_as_default=False, timeout=_CONNECT_TIMEOUT, direct_to_workers=True
            )
        except OSError as error:
            raise StreamLost(f"the scheduler of the stream at {url} does not answer: {error}") from error
        self._name, self._serials = secrets.token_hex(4), itertools.count()

    def submit(self, title: str, function: Callable[..., Any], *args: Any, priority: int = 0) -> Task:
        """Execute a call; of those that wait, the one with the greatest *priority* comes first."""
        key = f"{title.replace(' ', '-')}-{self._name}-{next(self._serials)}"
        return _Task(title, self._client.submit(function, *args, key=key, priority=priority, pure=False))

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class _Task:
    def __init__(self, title: str, future: Future[Any]) -> None:
        self._title, self._future = title, future

    def result(self) -> Any:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        from spotmpi.programs.pool.call import CallAborted

        try:
            return self._fetch()
        except (StreamError, SourceError):
            raise
        except CallAborted:
            remedy = "its output in the log may say why; it may lack memory"
            raise StreamError(f"{self._title} ended the process of its worker again and again: {remedy}") from None
        except KilledWorker as error:
            times = error.allowed_failures + 1
            raise StreamError(f"{self._title} lost its worker {times} times (limits.interruptions)") from None
        except (FutureCancelledError, OSError) as error:
            raise StreamLost(f"the scheduler of the stream is lost: {error}") from error
        finally:
            self._future.release()

    def cancel(self) -> None:
        self._future.release()

    def _fetch(self) -> Any:
        """The result, fetched again if need be: a frozen worker never answers, and is replaced after a while."""
        from distributed import TimeoutError as FetchTimeout

        for timeout in _FETCH_TIMEOUTS:
            try:
                return self._future.result(timeout=timeout)
            except FetchTimeout:
                if self._future.status == "error":
                    raise
        return self._future.result()
