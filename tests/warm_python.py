"""An interpreter that has imported what many processes of tests import, and forks into each of them.

A fork has the arguments, folder, variables, files and exit status of a new process, and `/proc` shows its command line.
It is the child of a client that asks for that (`tests.warm_processes`). For any other client it ends with the client,
which gets its exit status (`tests.engine.warm_environment`).

    python [OPTIONS] warm_python.py SOCKET MODULES PADDING      until its input is closed

A path is a socket's name, or @ and a name that is in no file system (unix(7), abstract).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PYTHON = sys.executable  # tests put others in its place
_PADDING = " " * 8192  # an argument and a variable of the server: room for those of its forks
_MOST_FILES = 32
_HIGH = 200  # no process asks for files with such numbers
Values = dict[str, Any]


@contextlib.contextmanager
def server(
    name: str, modules: Sequence[str], folder: Path, variables: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[None]:
    """An interpreter that has imported *modules* (``module`` or ``module:attribute``), to fork from by a socket."""
    command = [PYTHON, *options, __file__, name, json.dumps(modules), _PADDING]
    environment = {**variables, "PADDING": _PADDING}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline(), "the interpreter to fork from has not started"
            yield
        finally:
            process.stdin.close()  # which ends it


def _serve(listener: socket.socket) -> tuple[Values, socket.socket | None]:
    """Fork for each connection until stdin is closed; returns in the forks, with the connection to report the end to.

    A connection brings the length of a JSON object and files, and then that object: `executable`, `arguments`,
    `folder`, `variables`, the `numbers` of the files, and optionally `adopted`, `session` (its own) and `umask`.
    """
    while True:
        if 0 in select.select([0, listener.fileno()], [], [])[0]:
            os._exit(0)
        connection = listener.accept()[0]
        length, files, _, _ = socket.recv_fds(connection, 8, _MOST_FILES)
        with connection.makefile("rb") as stream:
            values: Values = json.loads(stream.read(int.from_bytes(length, "big")))
        adopted = values.get("adopted")
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0 and adopted and (orphan := os.fork()):
            theirs.close()
            if ours.recv(1):
                connection.sendall(orphan.to_bytes(8, "big"))
            os._exit(0)
        if child == 0:
            theirs = socket.socket(fileno=_move(theirs.detach()))
            listener.close()
            ours.close()
            if adopted:
                connection.close()
            _place(files, values["numbers"])
            _become(values)
            if adopted:
                theirs.send(b"r")
                theirs.recv(1)  # its end: once this process has its new parent
            theirs.close()
            return values, None if adopted else connection
        theirs.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(child if adopted else -1, 0 if adopted else os.WNOHANG)[0]:
                pass
        for each in files:
            os.close(each)
        ours.close()
        connection.close()


def _place(files: list[int], numbers: list[int]) -> None:
    for each, number in zip([_move(each) for each in files], numbers, strict=True):
        os.dup2(each, number)
        os.close(each)


def _move(file: int) -> int:
    """The new number of an open file, which no process asks for."""
    high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(file)
    return high


def _become(values: Values) -> None:
    """Take on all but the files of the process that *values* describe."""
    if values.get("session"):
        os.setsid()
    if "umask" in values:
        os.umask(values["umask"])
    os.chdir(values["folder"])
    os.environ.clear()  # which the C library has in the memory that is written next
    sys.orig_argv = [values["executable"], *values["arguments"]]
    _show(sys.orig_argv, [f"{name}={value}" for name, value in values["variables"].items()])
    os.environ.update(values["variables"])


def _show(arguments: list[str], variables: list[str]) -> None:
    """Let `/proc` show these (proc_pid_stat(5): arg_start, arg_end, env_start, env_end)."""
    places = [int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    for start, end, texts in zip(places[::2], places[1::2], (arguments, variables), strict=True):
        text = b"".join(os.fsencode(each) + b"\0" for each in texts)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run(arguments: list[str]) -> None:
    """Run the module, code or script of a command line of Python."""
    while arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        arguments = arguments[1:]
    sys.argv = arguments[1:] if arguments[0] == "-m" else arguments
    if not sys.flags.safe_path:
        sys.path[0] = {"-m": str(Path.cwd()), "-c": ""}.get(arguments[0], str(Path(arguments[0]).parent))
    if arguments[0] == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def _run_for(connection: socket.socket, arguments: list[str]) -> NoReturn:
    """Run a command line, and report its end."""

    def end_with_client() -> None:
        connection.recv(1)  # only its end: what started the process was killed
        os._exit(1)

    threading.Thread(target=end_with_client, daemon=True).start()
    status: Any = 1
    try:
        for output in (sys.stdout, sys.stderr):
            output.reconfigure(write_through=True)  # type: ignore[union-attr]
        _run(arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status]))
        os._exit(status)


def _main(name: str, modules: list[str]) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    for each in modules:
        module, _, attribute = each.partition(":")
        imported = importlib.import_module(module)
        if attribute:
            getattr(imported, attribute)
    gc.freeze()  # a collection in each fork would go through all of it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name.replace("@", "\0"))
        listener.listen(64)
        print("ready", flush=True)
        values, connection = _serve(listener)
    if connection is not None:
        _run_for(connection, values["arguments"])
    _run(values["arguments"])


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
