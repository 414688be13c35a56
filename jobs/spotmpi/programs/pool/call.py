"""A call of a pool: a function with its arguments, pickled by the driver and executed by a worker.

Scheduler and Dask see bytes alone, so neither needs the modules of a function, and what cannot be pickled is the error
of one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import copyreg
import functools
import inspect
import io
import pickle
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

from spotmpi.programs.pool.output import end_lines

KEY_MARK = "-spotmpi-"  # in the key of every call that a `Pool` sends, followed by its driver
TAKEN = "taken"  # the state of a call that another driver has collected
_MAX_ERROR = 1 << 20  # bytes of a pickled error, and characters of its text
_MAX_FRAMES = 100  # of a traceback, since pickle is recursive
_SET_STATE = "_class_setstate"  # the function of cloudpickle that sets the attributes of a class
_SetState = Callable[[type, Any], Any]
_setters: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()  # the function that a class came with


class CallAborted(Exception):
    """A call that ended its worker's process, or lost its worker, too often, or for good; it is not retried."""


class CallFailure(Exception):
    """What a call raised, on its way to the driver: *packed*, and as *text* for a driver that cannot load it."""

    def __init__(self, text: str, packed: bytes) -> None:
        super().__init__()  # Dask cuts long messages
        self.text, self.packed = text, packed

    def __reduce__(self) -> tuple[Any, ...]:
        return CallFailure, (self.text, self.packed)


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
    while isinstance(function, functools.partial):
        function = function.func
    return re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__)) or "call"


def driver_of(key: str) -> str:
    """The driver whose call has this key; empty for a key that is none of a `Pool`."""
    return key.partition(KEY_MARK)[2].partition("-")[0]


class _Unpickler(pickle.Unpickler):
    """Lets *set_class* set the attributes of each class that cloudpickle pickled by value, as those of ``__main__``.

    cloudpickle itself does so with every load, also where the class is here already and has others.
    """

    def __init__(self, data: bytes, set_class: Callable[[_SetState, type, Any], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._set_class = set_class

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return functools.partial(self._set_class, found) if name == _SET_STATE else found


def result_loader(packed: bytes) -> Callable[[], Any]:
    """What loads what a call gave or raised; classes of ``__main__`` that this process has stay as they are."""
    if _SET_STATE.encode() not in packed:
        return functools.partial(pickle.loads, packed)
    with cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        known = set(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    return _Unpickler(packed, lambda set_, class_, state: class_ if class_ in known else set_(class_, state)).load


@functools.lru_cache(maxsize=100)
def load_function(function: bytes) -> tuple[Callable[..., Any], list[tuple[_SetState, type, Any]]]:
    """The function that `pack_function` packed, and the classes that came with it, with what sets their attributes.

    It is the same object for the same bytes, until files are uploaded.
    """
    return _load_with_classes(function, function)


def _load_with_classes(data: bytes, setter: bytes) -> tuple[Any, list[tuple[_SetState, type, Any]]]:
    classes: list[tuple[_SetState, type, Any]] = []

    def set_class(set_state: _SetState, class_: type, state: Any) -> Any:
        classes.append((set_state, class_, state))
        _setters[class_] = setter
        return set_state(class_, state)

    return _Unpickler(data, set_class).load(), classes


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of *function* gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def execute(call: bytes) -> bytes:
    """The pickled result of a call; what it raises is raised as a `CallFailure`."""
    try:
        function, args, kwargs = _unpack(call)
        return _pack_result(function, function(*args, **kwargs))
    except BaseException as error:
        failure = _failure(error)
    finally:
        end_lines()
    raise failure  # without the error as its context, which Dask would pickle too


async def execute_async(call: bytes) -> bytes:
    """The pickled result of a call of an asynchronous function, as `execute`.

    It runs in an event loop of its own: one that computes or blocks must not stop the worker's heartbeats.
    """
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_execute_async(call), _event_loop()))


async def _execute_async(call: bytes) -> bytes:
    """`execute` for an asynchronous function, in the event loop of this process."""
    try:
        function, args, kwargs = _unpack(call)
        return _pack_result(function, await function(*args, **kwargs))
    except BaseException as error:
        failure = _failure(error)
    finally:
        end_lines()
    raise failure


@functools.lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all asynchronous calls of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task that a call has left behind
                loop.run_forever()

    threading.Thread(target=run, name="spotmpi-calls", daemon=True).start()
    return loop


def _failure(error: BaseException) -> CallFailure:
    """What a driver gets of an error: its text, and itself where it can be pickled and is not too large."""
    from tblib import pickling_support

    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without `execute`
    if not isinstance(error, Exception):  # would end the worker, or raised by the driver, the driver
        exit_ = f"the call exited: sys.exit({_repr(error.code)})" if isinstance(error, SystemExit) else ""
        error = RuntimeError(exit_ or f"the call raised {_repr(error)}").with_traceback(error.__traceback__)
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # its text may exit, too
        text = "".join([*traceback.format_tb(error.__traceback__), f"{type(error).__name__}: {_repr(error)}\n"])
    with contextlib.suppress(Exception):  # a call may have closed it
        print(text, end="", file=sys.__stderr__, flush=True)  # for the run's log; the driver raises it
    try:
        pickling_support.install(error)
        for kind in (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError, SyntaxError):
            own = (BaseException.__init__, kind.__init__)  # from their arguments, without which they have no text
            copyreg.pickle(kind, functools.partial(pickling_support.pickle_exception, builtin_inits=own))
        _shorten_traceback(error)
        packed = bytes(cloudpickle.dumps(error))
        result_loader(packed)()
    except BaseException:
        packed = b""
    return CallFailure(text[-_MAX_ERROR:], packed if len(packed) <= _MAX_ERROR else b"")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except BaseException as error:
        return f"<a {type(value).__name__}, whose representation raises {type(error).__name__}>"


def _shorten_traceback(error: BaseException | None) -> None:
    """Remove the middle of long tracebacks, such as that of a RecursionError, of an error and what caused it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames, frame = [], error.__traceback__
        while frame is not None:
            frames.append(frame)
            frame = frame.tb_next
        if len(frames) > _MAX_FRAMES:
            frames[_MAX_FRAMES // 2 - 1].tb_next = frames[-_MAX_FRAMES // 2]
        error = error.__cause__ or error.__context__


def _unpack(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    try:
        function, arguments = pickle.loads(call)
        (args, kwargs), _ = _load_with_classes(arguments, b"")
        loaded, classes = load_function(function)
        for set_state, class_, state in classes:
            if _setters.get(class_) != function:  # another call came with other attributes since
                _setters[class_] = function
                set_state(class_, state)
        return loaded, args, kwargs
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
