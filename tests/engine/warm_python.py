"""A virtual environment whose `python` forks from an interpreter that has imported what the Pulumi program imports.

The imports of the SDKs are most of a program's processor time, and one change of a setting starts the program three
times. The program itself, its arguments, variables, output and exit status are the same as in a new interpreter, which
a project with an `infra` of its own gets.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = "pulumi-language-python-exec"
_SOCKET = "warm.sock"
# Packages of the SDKs are loaded when an attribute is first used.
_USED = (
    *("infra.program.build", "infra.stack_config.current", "grpc.experimental.unary_unary"),
    *("pulumi_aws.ecr.Repository", "pulumi_aws.efs.FileSystem", "pulumi_aws.vpc.SecurityGroupIngressRule"),
    "pulumi_kubernetes.core.v1.Namespace",
)
# `bin/python` of the environment: hands a program on with its files, and runs everything else itself.
_CLIENT = f"""#!{sys.executable} -ISE
import json, os, socket, sys

if sys.argv[1:3] == ["-m", "pip"]:  # the list of what is installed, for which the language host asks at each start
    with open(os.path.join(os.path.dirname(__file__), "installed")) as installed:
        sys.exit(print(installed.read(), end=""))
is_imported = os.path.basename(os.getcwd()) != "infra" or os.path.samefile(".", {str(REPOSITORY / "infra")!r})
if not (is_imported and any(each.endswith({PROGRAM!r}) for each in sys.argv[1:])):
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
start = json.dumps({{"arguments": sys.argv[1:], "folder": os.getcwd(), "variables": dict(os.environ)}}).encode()
os.chdir(os.path.dirname(__file__))  # whose path can be longer than a socket's may be
server = socket.socket(socket.AF_UNIX)
server.connect({_SOCKET!r})
socket.send_fds(server, [len(start).to_bytes(8, "big")], [0, 1, 2])
server.sendall(start)
status = server.recv(1)
sys.exit(status[0] if status else 70)
"""


@contextmanager
def warm_environment(folder: Path) -> Iterator[None]:
    """Lay out a virtual environment in *folder*, ready to fork while the context lasts."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    python = folder / "bin" / "python"
    python.write_text(_CLIENT)
    python.chmod(0o755)
    with (python.parent / "installed").open("w") as installed:
        subprocess.run([sys.executable, "-m", "pip", "list", "-v", "--format", "json"], stdout=installed, check=True)
    command, pipe = [sys.executable, "-u", __file__], subprocess.PIPE
    with subprocess.Popen(command, cwd=python.parent, stdin=pipe, stdout=pipe, start_new_session=True) as server:
        assert server.stdin and server.stdout
        try:
            assert server.stdout.readline(), "the interpreter to fork from has not started"
            yield
        finally:
            server.stdin.close()  # which ends it


def _serve() -> None:
    """Fork for each connection until stdin is closed."""
    sys.path.insert(0, str(REPOSITORY))
    for each in _USED:
        module, _, name = each.rpartition(".")
        getattr(importlib.import_module(module), name)
    gc.freeze()  # a collection in each fork would go through all of it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_SOCKET)
        listener.listen()
        print("ready", flush=True)
        threading.Thread(target=_exit_with_stdin, daemon=True).start()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _run(connection)


def _exit_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def _run(connection: socket.socket) -> None:
    """Become the program that a connection asks for; its end is that of the process."""
    status = 1
    try:
        length, files, _, _ = socket.recv_fds(connection, 8, 3)
        with connection.makefile("rb") as stream:
            start = json.loads(stream.read(int.from_bytes(length, "big")))
        for number, each in enumerate(files):
            os.dup2(each, number)
            os.close(each)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.Thread(target=_exit_with_client, args=(connection,), daemon=True).start()
        os.chdir(start["folder"])
        os.environ.clear()
        os.environ.update(start["variables"])
        options = start["arguments"]
        sys.argv = options[next(i for i, each in enumerate(options) if each.endswith(PROGRAM)) :]
        outputs: list[Any] = [sys.stdout, sys.stderr]
        for output in outputs:
            output.reconfigure(write_through=True)
        runpy.run_path(sys.argv[0], run_name="__main__")
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


def _exit_with_client(connection: socket.socket) -> None:
    connection.recv(1)  # only its end: what started the program was killed
    os._exit(1)


if __name__ == "__main__":
    _serve()
