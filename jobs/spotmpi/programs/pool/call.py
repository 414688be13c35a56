"""A call of a pool: a function with its arguments, pickled by the driver and executed by a worker.

Scheduler and Dask see bytes alone, so neither needs the modules of a function, and what cannot be pickled is the error
of one call.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

KEY_MARK = "-spotmpi-"  # in the key of every call that a `Pool` sends


class CallAborted(Exception):
    """A call was given up since it ended its worker's process, or lost its worker, too often."""


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call as bytes; modules are named, and functions of ``__main__`` are included by value.

    Raises:
        TypeError: the function or an argument cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(f"the call of {name} cannot be pickled: {error}") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of *function* gives a coroutine."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def execute(call: bytes) -> bytes:
    """The pickled result of a call; what it raises is raised."""
    function, args, kwargs = _unpack(call)
    return _pack_result(function, function(*args, **kwargs))


async def execute_async(call: bytes) -> bytes:
    """The pickled result of a call of an asynchronous function."""
    function, args, kwargs = _unpack(call)
    return _pack_result(function, await function(*args, **kwargs))


def _unpack(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    try:
        unpacked: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = pickle.loads(call)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError):
            remedy = f"workers have no module {error.name}: send it with files=[...] or pool.upload"
            raise ModuleNotFoundError(remedy, name=error.name) from error
        raise type(error)(f"{error}; if workers have an older module, pool.upload the new one") from error
    return unpacked


def _pack_result(function: Callable[..., Any], result: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(f"the result of {name} cannot be pickled: {error}") from error
