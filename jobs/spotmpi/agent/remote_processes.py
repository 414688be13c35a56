"""Processes that mpirun starts on other nodes, by their agents in place of ssh: both ends of what agents pass on.

A process of `remote_start` connects to node 0's agent, which sends its request to the agent of the other node over the
connection that the two have. What comes back goes the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, Dict

from .clock import CLOCK, Clock
from .connection import parse
from .files import error_text
from .remote_start import UNREACHABLE

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "remote_start.py")
_REQUEST_TIMEOUT = 5.0  # seconds: a client sends its request at once
_MAX_REQUEST = 1 << 16  # bytes, of a message between agents
_PAUSE = 0.1  # seconds before the next request, where one cannot be taken
_OUTPUT = 1 << 13  # bytes of output in a message, of which each may become six characters


class StartServer:
    """Node 0's end: takes requests on the socket *path*, and passes them on by *send*, which tells whether it could.

    *hosts* are the names of the nodes. A thread takes requests, so that they need not wait for the agent's loop.
    """

    def __init__(self, path: str, hosts: Sequence[str], send: Callable[..., bool], clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._nodes = _by_name(hosts)
        self._send = send
        self._clients: Dict[int, socket.socket] = {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1024)
        threading.Thread(target=self._accept, name="starts", daemon=True).start()

    def relay(self, answer: dict[str, Any]) -> None:
        """Pass on the output or the exit code of a process to the one that had it started."""
        client = self._clients.get(answer["start"])
        if client is None:
            return
        with contextlib.suppress(OSError):  # it has ended, or does not read
            client.sendall(
                json.dumps({key: answer[key] for key in ("output", "code") if key in answer}).encode() + b"\n"
            )
        if "code" in answer:
            self._clients.pop(answer["start"], None)
            client.close()

    def begin(self, hosts: Sequence[str]) -> None:
        """Forget the processes of the attempt before; the nodes of this one have the names *hosts*."""
        self._nodes = _by_name(hosts)
        for number in list(self._clients):
            self._clients.pop(number).close()

    def _accept(self) -> None:
        for number in itertools.count(1):
            try:
                client = self._listener.accept()[0]
            except OSError:  # of a client that has gone, or because no descriptor is left
                self._clock.sleep(_PAUSE)
                continue
            try:
                self._read_request(number, client)
            except (OSError, ValueError, KeyError, TypeError):  # no request
                self._clients.pop(number, None)
                client.close()

    def _read_request(self, number: int, client: socket.socket) -> None:
        client.settimeout(_REQUEST_TIMEOUT)
        with client.makefile("rb") as lines:
            request = parse(lines.readline(_MAX_REQUEST))
        if request is None:
            raise ValueError("no request")
        client.setblocking(False)  # the agent must not wait for it, which may wait for the agent to read its output
        with contextlib.suppress(BlockingIOError):
            if not client.recv(1):
                raise ValueError("it has ended, with an attempt before this one")
        self._clients[number] = client
        node = self._nodes.get(request["host"])
        if node is None or not self._send(node, start=number, command=str(request["command"])):
            output = "node %s is not connected\n" % request["host"]
            self.relay({"start": number, "output": output, "code": UNREACHABLE})


def _by_name(hosts: Sequence[str]) -> dict[str, int]:
    """Nodes by their host names, from which mpirun leaves out the domain."""
    return {name: node for node, host in enumerate(hosts) for name in (host, host.split(".")[0])}


class StartedProcesses:
    """The other end: the processes that were started on this node in *folder*; *report* sends messages to node 0."""

    def __init__(self, folder: str, report: Callable[..., None]) -> None:
        self._folder = folder
        self._report = report
        self._running: Dict[int, subprocess.Popen[bytes]] = {}
        self._ended: list[subprocess.Popen[bytes]] = []  # whose daemons may still hold their pipes open

    def start(self, number: int, command: str) -> None:
        """Start a *command* of the shell."""
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        try:
            process = subprocess.Popen(
                ["sh", "-c", command],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            self._report(start=number, output="%s\n" % error_text(error), code=UNREACHABLE)
            return
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        self._running[number] = process

    def supervise(self) -> None:
        """Report what has been printed, and what has ended; called often."""
        for number, process in list(self._running.items()):
            code = process.poll()
            output = _read(process)
            if output:
                self._report(start=number, output=output.decode("utf-8", "replace"))
            elif code is not None:
                self._report(start=number, code=code if code >= 0 else 128 - code)
                self._ended.append(self._running.pop(number))

    def clear(self) -> None:
        """Forget all processes, which have been killed."""
        for process in (*self._running.values(), *self._ended):
            assert process.stdout
            process.stdout.close()
        self._running.clear()
        self._ended.clear()


def _read(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout
    with contextlib.suppress(BlockingIOError):
        return os.read(process.stdout.fileno(), _OUTPUT)
    return b""
