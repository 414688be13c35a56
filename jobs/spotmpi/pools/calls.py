"""Calls of a pool as the driver holds them."""

from __future__ import annotations

import logging
import operator
import threading
import warnings
from concurrent.futures import Future
from typing import Any, NoReturn

from spotmpi.pools.errors import PoolError
from spotmpi.programs.pool.call import KEY_MARK

LARGE = 10 << 20  # bytes of the arguments or the result of one call, above which there is a warning


class Call(Future[Any]):
    """One call: a future of `concurrent.futures`, with what is needed to send it again.

    Without *payload* it is a call of another driver, whose result is collected. *worker* is the number of the only
    worker that shall execute it, or None.

    Attributes:
        received: bytes of its result, once that is here.
        thread: the thread that ends it, once it was submitted.
    """

    def __init__(self, key: str, payload: bytes = b"", asynchronous: bool = False, worker: int | None = None) -> None:
        super().__init__()
        self.key, self.payload, self.asynchronous, self.worker = key, payload, asynchronous, worker
        self.received = 0
        self.thread: threading.Thread | None = None
        self._unfinished = True

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.key.partition(KEY_MARK)[0]

    def result(self, timeout: float | None = None) -> Any:
        """The result, or what the call raised; as that of `concurrent.futures.Future`."""
        self._require_another_thread()
        try:
            return super().result(timeout)
        finally:
            del self  # the error's traceback has this frame, and the call has the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; as that of `concurrent.futures.Future`."""
        self._require_another_thread()
        return super().exception(timeout)

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """End the call, unless it has ended; those who wait for a cancelled one hear of it. Nothing is raised."""
        if not self.__dict__.pop("_unfinished", False):  # in one step: several threads may end it
            return
        try:
            if not self.set_running_or_notify_cancel():
                return
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(result)
        except BaseException:  # of a callback, such as an exit: the engine's thread goes on
            logging.getLogger(__name__).exception("a callback of %r failed", self)

    def abandon(self, error: BaseException) -> None:
        """End the call in a forked process: the thread that would end it has not been copied."""
        self._condition = threading.Condition()  # that thread may have held it
        self._done_callbacks: list[Any] = []  # they are the parent's
        self._waiters = []
        if self.running():
            self.set_exception(error)
        elif self._state in ("PENDING", "CANCELLED"):
            self._unfinished = True
            self.finish(error=error)

    def __await__(self) -> NoReturn:
        remedy = "take its result(), or open the pool with `async with spotmpi.pool(...)`"
        raise TypeError(f"a call of a pool that was opened with `with` cannot be awaited: {remedy}")

    def __reduce__(self) -> Any:
        raise TypeError(f"the future of {self.name} is of its driver alone: wait for it, and send its result()")

    def _require_another_thread(self) -> None:
        if self.thread is threading.current_thread() and not self.done():
            raise PoolError(f"a callback cannot wait for the call of {self.name}: it holds up the thread that ends it")

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "finished" if self.done() else "pending"
        return f"<call of {self.name}: {state}>"


def is_count(value: object) -> bool:
    """Whether a value that a user gave is a whole number of at least 1; a float such as 4 / 2 is none, nor is NaN."""
    try:
        return operator.index(value) >= 1  # type: ignore[arg-type]
    except TypeError:
        return False


def key(name: str, driver: str, serial: int, index: int) -> str:
    """The key of call *index* of the map, or the call, that is number *serial* in this process."""
    return f"{name}{KEY_MARK}{driver}-{serial}-{index}"


def split_key(text: str) -> tuple[str, tuple[str, int], int]:
    """The function's name, what all calls of one map have in common, and the index among them."""
    name, _, rest = text.partition(KEY_MARK)
    driver, serial, index = rest.split("-")
    return name, (driver, int(serial)), int(index)


def warn_if_large(size: int, subject: str) -> None:
    """Warn of arguments or a result that should not go through the scheduler."""
    if size > LARGE:
        remedy = "write large data to the run volume and send its path"
        warnings.warn(f"{subject} has {size / 1e6:.0f} MB, which go through the scheduler: {remedy}", stacklevel=2)
