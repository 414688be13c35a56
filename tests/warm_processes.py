"""Processes of Python that start as forks of an interpreter which has imported what they import.

These are agents and the commands of pods: tests start some hundreds, and most of what each computes is its imports.
`subprocess` starts them in the place of a new interpreter, as children of the test's process, where their command
lines are those of `_KINDS`, and no option of `subprocess.Popen` is used that a fork cannot follow. All others, and
those of the contract of backends, are new interpreters.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spotmpi.core import names
from tests import warm_python

_AGENT = [f"spotmpi.agent.{name}" for name in ("coordinator", "children", "handover", "hardware", "notice")]
_OF_PODS = [f"spotmpi.agent.{name}" for name in ("__main__", "pod_context", "tcp", "worker")]
_KINDS = [  # the arguments that follow the interpreter, and what it has imported
    (["-I", "-S", "-c"], ["hashlib", "json", "shutil", "tarfile", "uuid"]),
    (["-S", "-E", "-m", "spotmpi.agent"], [*_AGENT, "shutil"]),
    (["-m", "tests.unit.agent.agent_process"], [*_AGENT, *_OF_PODS, "tests.transient_errors"]),
]
# What an interpreter, the C library or the loader reads at its start.
_AT_START = re.compile(r"PYTHON.*|LC_.*|LANG.*|TZ|LD_.*|MALLOC_.*|GLIBC_.*")
_UNLIKE = {  # options of Popen whose other values need a new process
    "executable": (None,),
    "preexec_fn": (None,),
    "close_fds": (True,),
    "shell": (False,),
    "restore_signals": (True,),
    "gid": (None,),
    "gids": (None,),
    "uid": (None,),
    "umask": (-1,),
    "process_group": (None, -1),
}
_EXECUTE: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_OPTIONS = list(inspect.signature(_EXECUTE).parameters)[1:]
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


@contextmanager
def warm_processes() -> Iterator[None]:
    """Start the known processes as forks while the context lasts (Linux)."""
    if not sys.platform.startswith("linux"):
        yield
        return
    with ExitStack() as stack:
        servers: dict[Any, str] = {}
        lock = threading.Lock()

        def execute(process: Any, *values: Any) -> None:
            options = dict(zip(_OPTIONS, values, strict=True))
            kind = _kind(options)
            if kind is None:
                _EXECUTE(process, *values)
                return
            prefix, modules = _KINDS[kind]
            variables = _text(os.environ if options["env"] is None else options["env"])
            early = {name: value for name, value in variables.items() if _AT_START.fullmatch(name)}
            with lock:
                key = (kind, *sorted(early.items()))
                if key not in servers:
                    servers[key] = f"@spotmpi-warm-{secrets.token_hex(8)}"
                    interpreter = [each for each in prefix if each in ("-I", "-S", "-E")]
                    stack.enter_context(warm_python.server(servers[key], modules, names.SOURCE, variables, interpreter))
                process.pid = _start(servers[key], options, variables)
            process._child_created = True
            process._close_pipe_fds(*(options[each] for each in _OPTIONS if each.startswith(("p2c", "c2p", "err"))))

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
        stack.callback(setattr, subprocess.Popen, "_execute_child", _EXECUTE)
        yield


def _kind(options: dict[str, Any]) -> int | None:
    """The number of the kind that a process is of; None: none of them, or not by a fork."""
    arguments, folder = options["args"], options["cwd"]
    if isinstance(arguments, str | bytes | os.PathLike) or list(arguments)[:1] != [warm_python.PYTHON]:
        return None
    if any(options[each] not in allowed for each, allowed in _UNLIKE.items()):
        return None
    if folder is not None and not Path(folder).is_dir():
        return None
    for number, (prefix, _) in enumerate(_KINDS):
        if list(arguments)[1 : 1 + len(prefix)] == prefix:
            return None if "-E" in prefix and folder != names.SOURCE else number
    return None


def _start(server: str, options: dict[str, Any], variables: dict[str, str]) -> int:
    """Start a process; its id, once it is a child of this one."""
    given = {0: options["p2cread"], 1: options["c2pwrite"], 2: options["errwrite"]}
    files = {number: number if file == -1 else file for number, file in given.items()}
    files |= {int(each): int(each) for each in options["pass_fds"]}
    executable, *arguments = map(os.fspath, options["args"])
    folder = str(Path(options["cwd"] or ".").absolute())
    values: dict[str, Any] = {
        "executable": executable,
        "arguments": arguments,
        "folder": folder,
        "variables": variables,
    }
    values |= {"numbers": list(files), "adopted": True, "session": options["start_new_session"], "umask": _umask()}
    text = json.dumps(values).encode()
    with socket.socket(socket.AF_UNIX) as connection, _subreaper():
        connection.connect(server.replace("@", "\0"))
        socket.send_fds(connection, [len(text).to_bytes(8, "big")], list(files.values()))
        connection.sendall(text)
        with connection.makefile("rb") as stream:
            pid = int.from_bytes(stream.read(), "big")  # up to the end, when it has this parent
    assert pid, "the interpreter to fork from has ended"
    return pid


@contextmanager
def _subreaper() -> Iterator[None]:
    """Make this process the parent of orphaned descendants."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _umask() -> int:
    return int(re.findall(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 8)


def _text(variables: Any) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
