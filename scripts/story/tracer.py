"""Runs a Python program as the interpreter would, and logs each function of the package when it is first called.

    python tracer.py LOGS MODULE|FILE [ARGUMENT ...]

Every process has its log in the folder LOGS, written line by line: agents are killed, and ranks replace themselves. A
process of the package that this one starts is traced as well; with ``-S -E`` it would read no other hook.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[2] / "jobs" / "spotmpi") + os.sep
MODULES = ("spotmpi.", "tests.")
# What has a frame of its own in some versions of Python and not in others; the last since 3.14, for annotations.
OF_SOME_VERSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "__annotate__")
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function, and not the body of a module or class


def start(logs: str, name: str) -> None:
    """Trace this process and what it starts, with its log called *name*."""
    log = os.open(Path(logs, f"{time.time_ns()}-{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seen: dict[int, CodeType] = {}  # by identity: a code object's own hash reads all of it

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in seen:
            seen[id(code)] = code
            is_function = code.co_flags & _OPTIMIZED and code.co_name not in OF_SOME_VERSIONS
            if is_function and code.co_filename.startswith(PACKAGE):
                file = code.co_filename[len(PACKAGE) :]
                os.write(log, f"{file}\t{code.co_name}:{code.co_firstlineno}\n".encode())

    class Popen(subprocess.Popen[Any]):
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            super().__init__(traced(args, logs), *more, **options)

    vars(subprocess)["Popen"] = Popen
    threading.setprofile(profile)
    sys.setprofile(profile)


def traced(arguments: Any, logs: str) -> Any:
    """The *arguments* of a process, by this file where they start a part of the package."""
    if not isinstance(arguments, list) or arguments[:1] != [sys.executable]:
        return arguments
    at = next((at for at, word in enumerate(arguments) if at and not word.startswith("-")), 0)
    word = arguments[at] + "."
    by_name = arguments[at - 1] == "-m" and word.startswith(MODULES)
    if not by_name and not word.startswith(PACKAGE):
        return arguments
    options = arguments[1 : at - 1] if by_name else arguments[1:at]
    return [sys.executable, *options, __file__, logs, *arguments[at:]]


def main(logs: str, program: str, *arguments: str) -> None:
    """Run a module, or a file, with its arguments."""
    is_file = os.sep in program
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent if is_file else Path.cwd())
    start(logs, Path(program).stem if is_file else program)
    if is_file:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
