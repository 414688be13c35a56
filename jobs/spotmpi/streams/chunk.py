"""A chunk of a stream: several batches of one rank that a worker prepares, or postprocesses, in one task."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

from spotmpi.agent import protocol
from spotmpi.agent.protocol import counted
from spotmpi.streams import sources, tensors
from spotmpi.streams.errors import SourceError, StreamError, loading_error, with_trace
from spotmpi.streams.order import PARQUET, Order, Settings, Slice, describe
from spotmpi.streams.results import encode

SKIP = "skip"
_KEYS = 20  # of a batch or row, in a message
_SUBSTITUTES = 16  # batches that are tried in place of one that cannot be prepared


class ChunkRequest(NamedTuple):
    """One batch: its number, and what is prepared: the seed and rows of itself and of its substitutes."""

    number: int
    choices: tuple[tuple[int, int, tuple[Slice, ...]], ...]  # number, seed and rows


class Result(NamedTuple):
    """What a prediction gave for a batch, with the seed and the rows of that."""

    number: int
    seed: int
    rows: str
    value: Any


class Skip(NamedTuple):
    """A batch that could not be prepared or postprocessed, and why."""

    number: int
    rows: str
    error: str


@dataclass(frozen=True)
class Chunk:
    """Prepared batches, or what is written of results, by number, with what it took."""

    batches: list[tuple[int, Any]]
    skips: list[Skip]
    seconds: float
    size: int  # bytes of the arrays and bytes in the batches
    worker: int = 0  # which did that

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


def request(order: Order, number: int) -> ChunkRequest:
    """The request for batch *number*.

    A batch that is skipped is replaced by the next one, so that ranks stay in step; where an incomplete global step is
    allowed it is left out.
    """
    settings = order.settings
    replaced = settings.on_error == SKIP and settings.last_batch != "keep"
    numbers = range(number, number + 1 + (_SUBSTITUTES if replaced else 0))
    return ChunkRequest(number, tuple((each, order.seed(each), tuple(order.slices(each))) for each in numbers))


def prepare(settings: Settings, requests: Sequence[ChunkRequest]) -> Chunk:
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
            rows = None
            try:
                rows = sources.read(settings, slices)
                batches.append((each.number, rows if function is None else function(rows, seed)))
                break
            except (StreamError, SourceError):
                raise
            except (Exception, SystemExit) as error:  # sys.exit would end the worker
                name = settings.prepare or settings.source
                skips.append(_skip(settings, name, number, describe(slices), error, rows))
        else:
            if len(each.choices) > 1:
                raise StreamError(
                    f"batch {each.number} and the {_SUBSTITUTES} after it cannot be prepared: {skips[-1].error}"
                )
    result = _chunk(batches, skips, begin)
    _require_picklable(result, settings.prepare or settings.source)
    return result


def pack(name: str, results: Sequence[Result]) -> bytes:
    """Results of the function *name* for `postprocess`, with tensors of a GPU as those of its host.

    Raises:
        StreamError: they cannot be pickled.
    """
    try:
        return bytes(
            cloudpickle.dumps([each._replace(value=tensors.pack(tensors.to_host(each.value))) for each in results])
        )
    except Exception as error:
        remedy = "yield arrays, tensors, numbers, texts and bytes, or dictionaries and lists of them"
        raise StreamError(
            f"{name} yielded from batch {results[0].number} on what cannot be pickled: {error}; {remedy}"
        ) from None


def postprocess(settings: Settings, packed: bytes) -> Chunk:
    """What is written of the results that `pack` has packed, once the user's `postprocess` had each.

    Raises:
        StreamError: that raised, or it returned what cannot be written.
    """
    begin = time.perf_counter()
    assert settings.postprocess
    function = sources.function(settings.postprocess)
    batches: list[tuple[int, Any]] = []
    skips: list[Skip] = []
    for each in _unpack(packed):
        _current[:] = [CurrentBatch(each.number, each.rows, time.monotonic())]
        try:
            result = function(each.value, each.seed)
        except (Exception, SystemExit) as error:
            skips.append(_skip(settings, settings.postprocess, each.number, each.rows, error, each.value))
        else:
            content = encode(settings.write or PARQUET, settings.postprocess, each.number, result)
            batches.append((each.number, content))
    return _chunk(batches, skips, begin)


def _unpack(packed: bytes) -> list[Result]:
    try:
        return [each._replace(value=tensors.unpack(each.value)) for each in pickle.loads(packed)]
    except (Exception, SystemExit) as error:  # a module that is imported may exit
        how = "yield arrays, numbers, texts and bytes"
        raise loading_error("results of the prediction", "a worker's", how, error) from None


def _chunk(batches: list[tuple[int, Any]], skips: list[Skip], begin: float) -> Chunk:
    """The chunk of *batches* with the seconds since *begin*; from here on this worker prepares no batch."""
    _current.clear()
    worker = int(os.environ.get(protocol.ENV_POOL_WORKER, "0"))
    return Chunk(batches, skips, time.perf_counter() - begin, sum(size_of(batch) for _, batch in batches), worker)


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


def _skip(settings: Settings, name: str, number: int, where: str, error: BaseException, value: Any) -> Skip:
    """The batch for which the function *name* raised *error*, given *value*, where such batches are skipped.

    Raises:
        StreamError: they are not; with the batch, its rows and the user's traceback.
    """
    cause = f"{type(error).__name__}: {error}{missing_key(error, value)}"
    if settings.on_error == SKIP:
        return Skip(number, where, cause)
    raise with_trace(f"{name} failed for batch {number} ({where}): {cause}", error) from None


def missing_key(error: BaseException, value: Any) -> str:
    """What a batch or a row of it has in place of the key that *error* is about; empty for any other error.

    *value* is the batch: a dictionary or data frame of columns, or a list of rows.
    """
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str):
        return ""
    named = enumerate(value) if isinstance(value, list) else [(None, value)]
    for row, each in named:
        keys = list(each.keys()) if callable(getattr(each, "keys", None)) else [key]
        if key not in keys:
            others = f" and {counted(len(keys) - _KEYS, 'other')}" if len(keys) > _KEYS else ""
            whose = "the batch" if row is None else f"row {row} of the batch"
            return f"; {whose} has {', '.join(map(str, keys[:_KEYS]))}{others}"
    return ""


def size_of(value: Any) -> int:
    """The bytes of a batch: arrays and bytes in tuples, lists, dictionaries."""
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    return int(getattr(value, "nbytes", 0) or 64)
