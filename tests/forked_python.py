"""Starts Python programs as forks of an interpreter that has imported what they import, most of what a start costs.

Arguments, variables, files, signals and exit codes are those of a new interpreter, whose options all programs of a
server share. A server ends with the process that uses it; its own variables are none of a test's.

    python OPTION ... forked_python.py MODULE,... ARGUMENT ...     prints the address of its socket, ends with stdin
    python forked_python.py --fork ADDRESS OPTION ... -c PROGRAM   stands for a program that is forked there
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_REPOSITORY = Path(__file__).resolve().parents[1]
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE")


class ForkedPython:
    """A process with what tests use of `subprocess.Popen`.

    *arguments* are ``-c`` and a program or ``-m`` and a module, then those of the program; *options* are of the
    interpreter, *files* the descriptors of its stdin, stdout and stderr, and *imports* what has been imported. With an
    *address* it is forked by the server there.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        files: tuple[int, int, int],
        imports: Sequence[str],
        options: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
        address: bytes | None = None,
    ) -> None:
        start = {"arguments": list(arguments), "folder": str(Path.cwd()), "variables": dict(environment)}
        request = json.dumps(start).encode()
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address or _server(tuple(options), tuple(imports)))
        socket.send_fds(self._connection, [len(request).to_bytes(8, "big")], files)
        self._connection.sendall(request)
        self.pid = int.from_bytes(self._connection.recv(4), "big")
        assert self.pid, "the interpreter to fork from has ended"

    def poll(self) -> int | None:
        """The exit code, negative where a signal has ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; `subprocess.TimeoutExpired` after *timeout* seconds."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                status = self._connection.recv(4)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("python", timeout or 0.0) from None
            assert status, "the interpreter to fork from has ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended; the server reaps it before this process hears of that."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)


_servers: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[subprocess.Popen[str], bytes]] = {}


def _server(options: tuple[str, ...], imports: tuple[str, ...]) -> bytes:
    """The address of a server, which ends with this process; or earlier, as tests of attempts kill all descendants."""
    server, address = _servers.get((options, imports), (None, b""))
    if server is None or server.poll() is not None:
        server, address = _servers[options, imports] = _started(options, imports)
    return address


def _started(options: tuple[str, ...], imports: tuple[str, ...]) -> tuple[subprocess.Popen[str], bytes]:
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    server, address = start_server(imports, (), options, variables)
    assert address, "the interpreter to fork from has not started"
    return server, address


def start_server(
    imports: Sequence[str], arguments: Sequence[str], options: Sequence[str], variables: Mapping[str, str]
) -> tuple[subprocess.Popen[str], bytes]:
    """A process to fork from, and its address, which is empty where an import ended it; modules find *arguments*."""
    command, pipe = [sys.executable, *options, __file__, ",".join(imports), *arguments], subprocess.PIPE
    variables = {**variables, "PYTHONPATH": str(_REPOSITORY)}
    server = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)
    assert server.stdin and server.stdout
    address = bytes.fromhex(server.stdout.readline())
    atexit.register(server.stdin.close)
    return server, address


class _Server:
    """Forks a program for each connection, and sends on it the process id, and the wait status once it has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._programs: dict[int, socket.socket] = {}
        self._ended, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        for each in (listener, sys.stdin, self._ended):
            self._selector.register(each, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # for its effect on the descriptor
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs alone
        signal.set_wakeup_fd(self._wakeup.fileno())

    def serve(self) -> None:
        """Fork until stdin ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._start()
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._report()
                else:
                    return

    def _start(self) -> None:
        connection, _ = self._listener.accept()
        length, files, _, _ = socket.recv_fds(connection, 8, 3)
        request = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        program = os.fork()
        if program == 0:
            signal.signal(signal.SIGINT, self._interrupt)
            _run(json.loads(request), files)
        for file in files:
            os.close(file)
        self._programs[program] = connection
        with contextlib.suppress(OSError):  # nobody waits for it
            connection.sendall(program.to_bytes(4, "big"))

    def _report(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                program, status = os.waitpid(-1, os.WNOHANG)
                if program == 0:
                    return
                with contextlib.suppress(OSError):
                    self._programs[program].sendall(status.to_bytes(4, "big"))
                self._programs.pop(program).close()


def _run(start: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """Become the program; its end is that of the process, which destroys no object of the server."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(start["folder"])
        os.environ.clear()
        os.environ.update(start["variables"])
        kind, program, *arguments = start["arguments"]
        sys.argv[:] = [kind, *arguments]
        if kind == "-m":
            sys.path.insert(0, start["folder"])
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter does at its end
        atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            try:
                if not output.closed:
                    output.flush()
            except OSError:
                code = 120
        os._exit(code)


def _main(modules: str) -> None:
    for module in modules.split(","):
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # Linux chooses a name, without a file
        listener.listen(100)
        print(listener.getsockname().hex(), flush=True)
        gc.freeze()
        _Server(listener).serve()


def _stand_for(address: str, arguments: Sequence[str]) -> NoReturn:
    """Fork a program at the server of *address*, and end as it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the program gets as well
    sys.exit(ForkedPython(arguments, (0, 1, 2), (), address=bytes.fromhex(address)).wait())


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        _stand_for(sys.argv[2], sys.argv[sys.argv.index("-c") :])
    _main(sys.argv[1])
