"""A chunk of a stream: several batches of one rank that a worker prepares in one task."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

from spotmpi.agent import protocol
from spotmpi.streams import sources, tensors
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Order, Settings, Slice, describe

SKIP = "skip"
_SUBSTITUTES = 16  # batches that are tried in place of one that cannot be prepared


class Request(NamedTuple):
    """One batch: its number, and what is prepared: the seed and rows of itself and of its substitutes."""

    number: int
    choices: tuple[tuple[int, int, tuple[Slice, ...]], ...]  # number, seed and rows


class Skip(NamedTuple):
    """A batch that could not be prepared, and why."""

    number: int
    rows: str
    error: str


@dataclass(frozen=True)
class Chunk:
    """Prepared batches by number, with what it took."""

    batches: list[tuple[int, Any]]
    skips: list[Skip]
    seconds: float
    size: int  # bytes of the arrays and bytes in the batches
    worker: int = 0  # which prepared them

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (tensors.pack(self.batches), self.skips, self.seconds, self.size, self.worker)


def _restore(batches: list[tuple[int, Any]], *values: Any) -> Chunk:
    return Chunk(tensors.unpack(batches), *values)


class Sealed:
    """A pickled value as Dask carries it, without a copy of its arrays: loading it is the business of its receiver.

    If the receiver lacked a module for it, Dask would close the connection.
    """

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return Sealed, ([pickle.PickleBuffer(buffer) for buffer in self._buffers],)

    def open(self) -> Any:
        """The value; raises what loading it raises."""
        views = [memoryview(buffer) for buffer in self._buffers]
        data, *buffers = (bytearray(view) if view.readonly else view for view in views)
        return pickle.loads(data, buffers=buffers)


def seal(value: Any) -> Sealed:
    """A value to send; raises what pickling it raises."""
    buffers: list[Any] = []
    try:
        data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:
        buffers.clear()
        data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return Sealed([bytearray(data), *buffers])


class CurrentBatch(NamedTuple):
    """The batch that a worker prepares."""

    number: int
    rows: str
    begin: float  # of this worker's monotonic clock, in seconds


_current: list[CurrentBatch] = []  # of this process


def current() -> tuple[int, str, float] | None:
    """Number and rows of the batch that this worker prepares now, and for how many seconds."""
    each = next(iter(_current), None)
    return each and (each.number, each.rows, time.monotonic() - each.begin)


def request(order: Order, number: int) -> Request:
    """The request for batch *number*.

    A batch that is skipped is replaced by the next one, so that ranks stay in step; where an incomplete global step is
    allowed it is left out.
    """
    settings = order.settings
    replaced = settings.on_error == SKIP and settings.last_batch != "keep"
    numbers = range(number, number + 1 + (_SUBSTITUTES if replaced else 0))
    return Request(number, tuple((each, order.seed(each), tuple(order.slices(each))) for each in numbers))


def prepare(settings: Settings, requests: Sequence[Request]) -> Chunk:
    """Read and prepare the batches of a chunk.

    Raises:
        StreamError: `prepare` of the user raised, or the source was changed.
        SourceError: the storage does not answer.
    """
    begin = time.perf_counter()
    function = sources.function(settings.prepare) if settings.prepare else None
    batches: list[tuple[int, Any]] = []
    skips: list[Skip] = []
    for each in requests:
        for number, seed, slices in each.choices:
            _current[:] = [CurrentBatch(number, describe(slices), time.monotonic())]
            try:
                rows = sources.read(settings, slices)
                batches.append((each.number, rows if function is None else function(rows, seed)))
                break
            except (StreamError, SourceError):
                raise
            except (Exception, SystemExit) as error:  # sys.exit would end the worker
                where = describe(slices)
                if settings.on_error != SKIP:
                    raise StreamError(_failure(settings, number, where)) from None
                skips.append(Skip(number, where, f"{type(error).__name__}: {error}"))
        else:
            if len(each.choices) > 1:
                raise StreamError(
                    f"batch {each.number} and the {_SUBSTITUTES} after it cannot be prepared: {skips[-1].error}"
                )
    _current.clear()
    worker = int(os.environ.get(protocol.ENV_POOL_WORKER, "0"))
    seconds = time.perf_counter() - begin
    result = Chunk(batches, skips, seconds, sum(_size(batch) for _, batch in batches), worker)
    _require_picklable(result, settings.prepare or settings.source)
    return result


class _NullFile:
    def write(self, content: Any) -> int:
        return len(content)


def _require_picklable(value: Chunk, name: str) -> None:
    """Raise StreamError for a batch that cannot be sealed. Arrays are not copied."""
    try:
        pickle.Pickler(_NullFile(), protocol=5, buffer_callback=lambda buffer: None).dump(value)
    except Exception:
        for number, batch in value.batches:
            try:
                cloudpickle.dumps(batch)  # as `seal` does then
            except Exception as error:
                remedy = "return arrays, tensors, numbers, texts and bytes, or dictionaries and lists of them"
                raise StreamError(
                    f"{name} returned for batch {number} what cannot be pickled: {error}; {remedy}"
                ) from None


def _failure(settings: Settings, number: int, where: str) -> str:
    """What a `prepare` raised: the batch, its rows and the traceback without our own frames."""
    kind, error, trace = sys.exc_info()
    assert kind is not None and trace is not None
    own = trace.tb_next or trace
    text = "".join(traceback.format_exception(kind, error, own)).rstrip()
    return (
        f"{settings.prepare or settings.source} failed for batch {number} ({where}): {kind.__name__}: {error}\n{text}"
    )


def _size(value: Any) -> int:
    """The bytes of a batch: arrays and bytes in tuples, lists, dictionaries."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    return int(getattr(value, "nbytes", 0) or 64)
