"""Many questions at once; one that fails leaves a gap in the answers instead of ending the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from spotmpi.aws.errors import CallFailed

Given = TypeVar("Given")
AT_ONCE = 32


@dataclass(frozen=True)
class CallFailure:
    """What could not be learnt: `reason` fits a table's cell, `detail` is a line with the remedy."""

    reason: str
    detail: str


class Answer(Generic[Given]):
    """The answer to one question, once it is there."""

    def __init__(self, future: Future[Given]) -> None:
        self._future = future

    def get(self) -> Given | CallFailure:
        """Waits for the answer; a CallFailure where that call failed, CloudError where nothing can be asked at all."""
        try:
            return self._future.result()
        except CallFailed as error:
            return CallFailure(error.short, str(error))


class ConcurrentCalls:
    """Asks up to 32 questions at a time; leaving its block by an error drops those that wait."""

    def __enter__(self) -> ConcurrentCalls:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="aws")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=kind is not None)

    def ask(self, question: Callable[[], Given]) -> Answer[Given]:
        """Starts *question* as soon as a thread is free."""
        return Answer(self._pool.submit(question))
