"""Many AWS calls at the same time; one that fails returns a CallFailure instead of ending the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from spotmpi.aws.errors import CallError

Result = TypeVar("Result")
MAX_CALLS = 32


@dataclass(frozen=True)
class CallFailure:
    """Why a value is unknown: `reason` fits into a table cell, `detail` is a line with the remedy."""

    reason: str
    detail: str


class PendingCall(Generic[Result]):
    """A call that has been submitted."""

    def __init__(self, future: Future[Result]) -> None:
        self._future = future

    def result(self) -> Result | CallFailure:
        """Wait for the result; a CallFailure where this call failed, CloudError where no call can succeed."""
        try:
            return self._future.result()
        except CallError as error:
            return CallFailure(error.short, str(error))


class ConcurrentCalls:
    """Runs up to 32 calls at a time; an error that leaves the `with` block cancels those that wait."""

    def __enter__(self) -> ConcurrentCalls:
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="aws")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=kind is not None)

    def submit(self, call: Callable[[], Result]) -> PendingCall[Result]:
        """Start *call* as soon as a thread is free."""
        return PendingCall(self._pool.submit(call))
