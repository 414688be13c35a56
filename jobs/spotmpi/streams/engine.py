"""The connection of a rank to the workers of its stream: a thin layer over Dask's client."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import pickle
import secrets
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from spotmpi.agent.files import error_text
from spotmpi.agent.plan import WORKER, Member
from spotmpi.agent.protocol import counted
from spotmpi.programs.pool.settings import quiet_loggers, security, use_steady_time, worker_member
from spotmpi.streams import chunk
from spotmpi.streams.errors import SourceError, StreamError, StreamLost, loading_error

if TYPE_CHECKING:
    from distributed.client import Future

# Seconds for a result, which include its preparation; the last tries leave time for large ones.
_FETCH_TIMEOUTS = (*(6 * [5]), *(10 * 2**times for times in range(12)))
_CONNECT_TIMEOUT = 60  # seconds to reach the scheduler
_WAIT_INTERVAL = 5  # seconds of waiting between two reports of it
_RECEIVE_TIMEOUT = 600  # seconds for rank 0 to list the source
_ASK_TIMEOUT = 2  # seconds for what a worker is doing
_FORKED = (
    "a forked process, such as a worker of PyTorch's DataLoader, cannot use the stream of its parent: iterate over it "
    "in the rank itself; the workers of the stream prepare its batches"
)


def execute(call: bytes) -> chunk.Sealed:
    """The result of a pickled call; executed by workers."""
    function, args = pickle.loads(call)
    try:
        return chunk.seal(function(*args))
    except (StreamError, SourceError) as error:
        error.__cause__ = error.__context__ = None  # Dask would pickle them too, and not every error can be
        raise


class TaskLocation(NamedTuple):
    """The worker that has a task, and what it prepares now: number, rows and seconds of a batch."""

    worker: Member
    batch: tuple[int, str, float] | None


OnWait = Callable[[TaskLocation | None], None]


def _ignore(place: TaskLocation | None) -> None:
    pass


class Task(Protocol):
    """A call that a worker executes."""

    def fetch(self) -> None:
        """Begin to fetch its result, without waiting for it."""
        ...

    def result(self, on_wait: OnWait = _ignore) -> Any:
        """Its result; waits for it, and forgets it on the worker. *on_wait* is called now and then in a long wait."""
        ...

    def done(self) -> bool:
        """Whether a worker has executed it, or cannot: its result takes no longer than its transfer."""
        ...

    def cancel(self) -> None:
        """Forget it."""
        ...


class Engine:
    """Calls of functions on the workers of the scheduler at *url*; results come from workers directly.

    Where workers have several *roles*, a call is one for those of its role.
    """

    def __init__(self, url: str, tls: str, roles: Collection[str] = (WORKER,)) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            remedy = 'install spotmpi for it, or name an image that has it, such as image = "pytorch"'
            raise StreamError(f"{sys.executable} has no module {error.name}, which streams need: {remedy}") from None
        use_steady_time()
        quiet_loggers()
        self._process = os.getpid()
        try:
            self._client = Client(
                url, security=security(tls), set_as_default=False, timeout=_CONNECT_TIMEOUT, direct_to_workers=True
            )
        except OSError as error:
            raise StreamLost(f"the scheduler of the stream at {url} does not answer: {error_text(error)}") from error
        self._has_roles = len(roles) > 1
        self._name, self._serials = secrets.token_hex(4), itertools.count()

    def submit(
        self,
        title: str,
        function: Callable[..., Any],
        *args: Any,
        priority: int = 0,
        avoid: int | None = None,
        role: str = WORKER,
    ) -> Task:
        """Execute a call; of those that wait, the one with the greatest *priority* comes first.

        *avoid* is the number of a worker that executes it only if there is no other.
        """
        self.require_own()
        key = f"{title.replace(' ', '-')}-{self._name}-{next(self._serials)}"
        options: dict[str, Any] = {"resources": {role: 1}} if self._has_roles else {}
        if avoid is not None:
            others = [url for each, url in self.workers().items() if each.role == role and each.number != avoid]
            options |= {"workers": others, "allow_other_workers": True} if others else {}
        # As bytes: Dask would look for futures in every slice of every batch.
        call = pickle.dumps((function, args))
        future = self._client.submit(execute, call, key=key, priority=priority, pure=False, **options)
        return _Task(title, future, self)

    def require_own(self) -> None:
        """Raise StreamError in a forked process, to which the threads of the connection have not been copied."""
        if os.getpid() != self._process:
            raise StreamError(_FORKED)

    def workers(self) -> dict[Member, str]:
        """The addresses of the workers that are connected now."""
        self.require_own()
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        named = ((worker_member(str(worker["name"])), str(address)) for address, worker in workers.items())
        return {member: address for member, address in named if member is not None}

    def place(self, key: str) -> TaskLocation | None:
        """Where the task of a key is; None where that is unknown, as of one that waits for a worker."""
        try:
            processing = self._client.processing()
            address = next(worker for worker, keys in processing.items() if key in keys)
            worker = next(member for member, url in self.workers().items() if url == address)
        except Exception:  # the wait for the result has the failure
            return None
        try:
            call = self._client._run
            batches = self._client.sync(call, chunk.current, workers=[address], callback_timeout=_ASK_TIMEOUT)
            return TaskLocation(worker, batches[address])
        except Exception:  # it may be frozen
            return TaskLocation(worker, None)

    def publish(self, name: str, text: str) -> None:
        """Give a text to every client of the scheduler that receives this name, now or later."""
        from distributed import Variable

        Variable(name, client=self._client).set(text)

    def receive(self, name: str) -> str:
        """The text that another client publishes by this name; waits for it."""
        from distributed import TimeoutError as ReceiveTimeout
        from distributed import Variable

        try:
            return str(Variable(name, client=self._client).get(timeout=_RECEIVE_TIMEOUT))
        except ReceiveTimeout:
            remedy = "call spotmpi.stream() in every rank"
            raise StreamError(f"rank 0 has not opened the stream for {_RECEIVE_TIMEOUT} s: {remedy}") from None
        except OSError as error:
            raise StreamLost(f"the scheduler of the stream is lost: {error_text(error)}") from error

    def close(self) -> None:
        """End the connection, which is the parent's in a forked process."""
        if os.getpid() == self._process:
            self._client.close()


class _Task:
    def __init__(self, title: str, future: Future[Any], engine: Engine) -> None:
        self._title, self._future, self._engine = title, future, engine
        self._result: concurrent.futures.Future[Any] | None = None

    def fetch(self) -> None:
        if self._result is None:
            self._result = concurrent.futures.Future()
            # A daemon: a process must be able to end while nobody answers.
            threading.Thread(target=self._run, args=(self._result,), daemon=True).start()

    def _run(self, result: concurrent.futures.Future[Any]) -> None:
        try:
            result.set_result(self._fetch())
        except BaseException as error:
            result.set_exception(error)

    def result(self, on_wait: OnWait = _ignore) -> Any:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        from spotmpi.programs.pool.call import CallAborted

        self._engine.require_own()
        try:
            return self._wait(on_wait)
        except (StreamError, SourceError):
            raise
        except CallAborted:
            remedy = "see its output in the log; it may need more memory"
            raise StreamError(f"{self._title} repeatedly ended the process of its worker: {remedy}") from None
        except KilledWorker as error:
            times = error.allowed_failures + 1
            raise StreamError(
                f"{self._title} lost its worker {counted(times, 'time')} (limits.interruptions)"
            ) from None
        except (FutureCancelledError, OSError) as error:
            raise StreamLost(f"the scheduler of the stream is lost: {error_text(error)}") from error
        finally:
            self._future.release()

    def done(self) -> bool:
        return bool(self._future.done())

    def cancel(self) -> None:
        self._future.release()

    def _wait(self, on_wait: OnWait) -> Any:
        self.fetch()
        assert self._result
        while True:
            try:
                return self._result.result(_WAIT_INTERVAL)
            except TimeoutError:
                if self._result.done():
                    return self._result.result()
                on_wait(self._engine.place(str(self._future.key)))

    def _fetch(self) -> Any:
        """The result, fetched again if need be: a frozen worker never answers, and is replaced after a while."""
        from distributed import TimeoutError as FetchTimeout

        for timeout in _FETCH_TIMEOUTS:
            try:
                return load(self._title, self._future.result(timeout=timeout))
            except FetchTimeout:
                if self._future.status == "error":
                    raise
        return load(self._title, self._future.result())


def load(title: str, result: chunk.Sealed) -> Any:
    """What a worker has sent.

    Raises:
        StreamError: this process cannot load it.
    """
    try:
        return result.open()
    except (Exception, SystemExit) as error:  # a module that is imported may exit
        how = "return arrays, tensors, numbers, texts and bytes"
        raise loading_error(title, "its rank's", how, error) from None
