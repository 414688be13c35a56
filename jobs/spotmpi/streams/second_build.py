"""Building a part again in a process of its own, where what a function must not depend on is different.

Its hashes, and so the order of its sets, are others, and the modules of the user see a later date, by `time` and
`datetime`. Storage is read with the right time, which signatures need.
"""

from __future__ import annotations

import datetime
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotmpi.streams.dataset import is_installed
from spotmpi.streams.errors import StreamError

_LATER = datetime.timedelta(days=400, hours=13, minutes=7, seconds=11)  # another year, day of the week, hour, ...
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from spotmpi.streams import second_build; second_build.main()"


def call(function: Callable[[Any], Any], task: Any) -> Any:
    """What ``function(task)`` gives in a process of its own.

    Raises:
        StreamError: that process was killed.
        Exception: what the function raises.
    """
    import cloudpickle  # which comes with Dask

    gc.collect()
    if "pyarrow" in sys.modules:  # data sets of other files do without
        sys.modules["pyarrow"].default_memory_pool().release_unused()  # the other process needs as much as this one did
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with tempfile.TemporaryDirectory(prefix="spotmpi-") as folder:
        request, answer = Path(folder, "request"), Path(folder, "answer")
        request.write_bytes(cloudpickle.dumps((function, task)))
        command = [sys.executable, "-c", _PROGRAM, str(request), str(answer), *sys.path]
        code = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": other}, stdin=subprocess.DEVNULL).returncode
        if not answer.exists():
            cause, remedy = f"exit status {code}", "see the worker's output"
            if code < 0:
                cause = f"signal {-code}"
                remedy = "if its memory was too little, give workers more; with check=0 no part is built again"
            raise StreamError(f"the process that builds a part again has ended with {cause}: {remedy}")
        result, error = pickle.loads(answer.read_bytes())
    if error is not None:
        raise error
    return result


def main() -> None:
    """Execute the call in the file that the first argument names, and write its result or exception to the second."""
    import cloudpickle

    request, answer = sys.argv[1:3]
    function, task = pickle.loads(Path(request).read_bytes())
    # The modules of the user see a later date.
    later = {id(known): other for known, other in _later()}
    for name, module in [*sys.modules.items()]:
        if not _is_own(name, getattr(module, "__file__", None)):
            continue
        for variable, value in [*vars(module).items()]:
            if id(value) in later:
                setattr(module, variable, later[id(value)])
    result: Any = None
    error: BaseException | None = None
    try:
        result = function(task)
    except Exception as caught:  # the function is the user's
        error = caught
    Path(answer).write_bytes(cloudpickle.dumps((result, error)))


def _is_own(name: str, file: str | None) -> bool:
    top = name.partition(".")[0]
    return bool(file) and top not in ("__main__", "spotmpi", *sys.stdlib_module_names) and not is_installed(file)


def _later() -> Iterator[tuple[Any, Any]]:
    """The modules, classes and functions that tell the time, each with one that tells a later time."""
    seconds = _LATER.total_seconds()
    moments: dict[str, Callable[..., Any]] = {
        "time": lambda: time.time() + seconds,
        "time_ns": lambda: time.time_ns() + int(seconds * 1e9),
        "localtime": lambda t=None: time.localtime(time.time() + seconds if t is None else t),
        "gmtime": lambda t=None: time.gmtime(time.time() + seconds if t is None else t),
        "ctime": lambda t=None: time.ctime(time.time() + seconds if t is None else t),
        "strftime": lambda form, t=None: time.strftime(form, time.localtime(time.time() + seconds) if t is None else t),
    }
    classes: dict[str, Any] = {name: _later_class(getattr(datetime, name)) for name in ("date", "datetime")}
    for module, others in ((time, moments), (datetime, classes)):
        copy = types.ModuleType(module.__name__)
        vars(copy).update(vars(module), **others)
        yield module, copy
        yield from ((getattr(module, name), other) for name, other in others.items())


def _later_class(real: Any) -> Any:
    """*real*, a class of `datetime`, whose methods that tell the time tell a later one; its objects are of *real*."""

    class Later(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    def shifted(name: str) -> Any:
        return classmethod(lambda cls, *args, **kwargs: getattr(real, name)(*args, **kwargs) + _LATER)

    methods = {name: shifted(name) for name in ("now", "today", "utcnow") if hasattr(real, name)}
    create = {"__new__": lambda cls, *args, **kwargs: real(*args, **kwargs)}
    return Later(real.__name__, (real,), {**create, **methods})
