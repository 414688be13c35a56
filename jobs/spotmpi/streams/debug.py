"""Finds a `prepare` that is not a function of its arguments: a second worker prepares a sample of batches too."""

from __future__ import annotations

import copy
import pickle
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from spotmpi.agent.protocol import counted
from spotmpi.streams.chunk import Chunk, ChunkRequest
from spotmpi.streams.engine import Task
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Settings, describe

MAX_CHECKS = 4  # in flight: a rank keeps a copy of the batch of each


class _Check(NamedTuple):
    request: ChunkRequest
    batch: Any  # as the first worker prepared it
    worker: int
    task: Task


class Checks:
    """The checks of a rank; *submit* has a batch prepared by a worker other than the one that it is given."""

    def __init__(self, settings: Settings, submit: Callable[[ChunkRequest, int], Task]) -> None:
        self._settings, self._submit = settings, submit
        self._in_flight: deque[_Check] = deque()

    def begin(self, chunk: Chunk, requests: Sequence[ChunkRequest], first: bool) -> None:
        """Begin the checks of a chunk; the *first* batch of a rank is always among the sample."""
        batches = dict(chunk.batches)
        for each in requests:
            if each.number in batches and (first or in_sample(self._settings, each.number)):
                task = self._submit(each, chunk.worker)
                self._in_flight.append(_Check(each, copy.deepcopy(batches[each.number]), chunk.worker, task))
            first = False
        self.finish(MAX_CHECKS)

    def finish(self, most: int = 0) -> None:
        """Wait until at most so many checks are in flight.

        Raises:
            StreamError: two workers prepared different batches.
        """
        while len(self._in_flight) > most:
            check = self._in_flight.popleft()
            again: Chunk = check.task.result()
            where = difference(check.batch, dict(again.batches).get(check.request.number))
            if where:
                name = self._settings.prepare or self._settings.source
                number, _, slices = check.request.choices[0]
                rows = describe(slices)
                raise StreamError(
                    f"{name} is not a function of its arguments: for batch {number} ({rows}) worker {check.worker} and "
                    f"worker {again.worker} have different values: {where}; remove state, clocks and random numbers "
                    "that do not come from `seed`"
                )

    def cancel(self) -> None:
        """Forget the checks in flight."""
        while self._in_flight:
            self._in_flight.popleft().task.cancel()


def in_sample(settings: Settings, number: int) -> bool:
    """Whether batch *number* is among those that two workers prepare: the same ones in every attempt."""
    return random.Random(f"debug {settings.seed} {number}").random() < settings.debug


def difference(first: Any, second: Any, place: str = "") -> str | None:
    """Where two batches differ and how; None where they are equal. *place* is that of both in their batches."""
    name = place or "the batch"
    if type(first) is not type(second):
        return f"{name} is a {type(first).__name__}, then a {type(second).__name__}"
    if isinstance(first, Mapping):
        if list(first) != list(second):
            return f"{name} has the keys {list(first)}, then {list(second)}"
        return next(filter(None, (difference(first[key], second[key], f"{place}[{key!r}]") for key in first)), None)
    if isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return f"{name} has {counted(len(first), 'item')}, then {len(second)}"
        pairs = enumerate(zip(first, second, strict=True))
        return next(filter(None, (difference(one, two, f"{place}[{at}]") for at, (one, two) in pairs)), None)
    if hasattr(first, "__array__"):
        try:
            pair = _array(first), _array(second)
        except (TypeError, ValueError, RuntimeError):  # as of sparse tensors, and of types that numpy lacks
            return None if _equal(first, second) else f"{name} is {_short(first)}, then {_short(second)}"
        return _array_difference(*pair, place)
    if _equal(first, second):
        return None
    has_equality = any("__eq__" in vars(each) for each in type(first).__mro__[:-1])
    if not has_equality and hasattr(first, "__dict__"):  # equal only to itself
        return difference(vars(first), vars(second), place)
    return f"{name} is {_short(first)}, then {_short(second)}"


def _equal(first: Any, second: Any) -> bool:
    """Whether two values are equal, or both no number; of some types `==` gives no truth value."""
    try:
        if first == second or (first != first and second != second):
            return True
    except Exception:
        pass
    try:
        return pickle.dumps(first) == pickle.dumps(second)
    except Exception:
        return False


def _array(value: Any) -> Any:
    """What has an array as one of numpy, tensors included: numpy has no bfloat16, and none of those on a GPU."""
    import numpy

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    return numpy.asarray(value)


def _array_difference(one: Any, two: Any, place: str) -> str | None:
    import numpy

    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{place or 'the batch'} is {one.dtype} of shape {one.shape}, then {two.dtype} of shape {two.shape}"
    if one.dtype.names:
        fields = (_array_difference(one[name], two[name], f"{place}[{name!r}]") for name in one.dtype.names)
        return next(filter(None, fields), None)
    if one.dtype.kind == "O":
        pairs = zip(one.flat, two.flat, strict=True)
        unequal = numpy.array([difference(*pair) is not None for pair in pairs], bool).reshape(one.shape)
    else:
        unequal = numpy.asarray(one != two)
    if one.dtype.kind in "fcmM":  # NaN and NaT are unequal to themselves
        unequal &= ~((one != one) & (two != two))
    places = numpy.argwhere(unequal)
    if not len(places):
        return None
    at = tuple(map(int, places[0]))
    where = f"{place}[{', '.join(map(str, at))}]" if at else place or "the batch"
    count = f" ({len(places)} of {counted(one.size, 'value')} {'differs' if len(places) == 1 else 'differ'})"
    if one.dtype.kind == "O":
        return f"{difference(one[at], two[at], where)}{count}"
    return f"{where} is {_short(one[at])}, then {_short(two[at])}{count}"


def _short(value: Any) -> str:
    import numpy

    is_time = isinstance(value, (numpy.datetime64, numpy.timedelta64))  # whose `item` may be a plain number, or None
    is_number = getattr(value, "ndim", None) == 0 and not is_time
    text = str(value) if is_time else repr(value.item() if is_number else value)
    return text if len(text) <= 60 else text[:57] + "..."
