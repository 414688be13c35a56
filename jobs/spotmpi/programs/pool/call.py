"""A call of a pool: a function with its arguments, pickled by the driver and executed by a worker.

Scheduler and Dask see bytes alone, so neither needs the modules of a function, and what cannot be pickled is the error
of one call.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import cloudpickle

KEY_MARK = "-spotmpi-"  # in the key of every call that a `Pool` sends


class CallAborted(Exception):
    """A call was given up since it ended its worker's process, or lost its worker, too often."""


def pack_function(function: Callable[..., Any]) -> bytes:
    """The function as bytes: those of a module by its name, those of ``__main__`` by value.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:
        raise TypeError(f"the function {function_name(function)} cannot be pickled: {error}") from error


def pack(name: str, function: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call of a packed *function* with its arguments as bytes; *name* is for messages.

    Raises:
        TypeError: an argument cannot be pickled.
    """
    try:
        return pickle.dumps((function, bytes(cloudpickle.dumps((args, kwargs)))))
    except Exception as error:
        raise TypeError(f"an argument of {name} cannot be pickled: {error}") from error


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function for people: letters, digits and _ only."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__)) or "call"


@functools.lru_cache(maxsize=100)
def load_function(function: bytes) -> Callable[..., Any]:
    """The function that `pack_function` packed; the same object for the same bytes, until files are uploaded."""
    loaded: Callable[..., Any] = pickle.loads(function)
    return loaded


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
        function, arguments = pickle.loads(call)
        args, kwargs = pickle.loads(arguments)
        return load_function(function), args, kwargs
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError):
            remedy = f"workers have no module {error.name}: send it with files=[...] or pool.upload"
            raise ModuleNotFoundError(remedy, name=error.name) from error
        raise type(error)(f"{error}; if workers have an older module, pool.upload the new one") from error


def _pack_result(function: Callable[..., Any], result: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(f"the result of {function_name(function)} cannot be pickled: {error}") from error
