"""The fork server of an agent: it starts before the first attempt and outlives them; where it ended, another starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Dict

from . import processes
from .plan import RunPlan, gang

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
_WAITING = 1024  # rank wrappers whose requests wait while the server imports
_servers: Dict[str, subprocess.Popen[bytes]] = {}  # by the paths of their sockets


def socket_path(plan: RunPlan, folder: str) -> str | None:
    """Where the ranks of a plan are forked, in a *folder* of this node alone; None where it has no such ranks."""
    if not plan.get("preload"):
        return None
    from . import fork_server  # delays no start of others

    is_possible = fork_server.entry(gang(plan)["command"]) is not None
    return os.path.join(folder, "fork.sock") if is_possible else None


def serve(plan: RunPlan, folder: str, rank_wrapper: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """`socket_path`, with a server that forks there once it has imported the modules; starts nothing where one runs.

    The *rank_wrapper* lets the server end with this agent; *environment* is that of ranks.

    Raises:
        OSError: there can be no server.
    """
    path = socket_path(plan, folder)
    before = _servers.get(path or "")
    if path is None or (before is not None and before.poll() is None):
        return path
    if before is not None:
        processes.exempt.discard(before.pid)
    from . import fork_server

    entry = fork_server.entry(gang(plan)["command"])
    assert entry is not None, "a path says so"
    with _listener(path) as descriptor:
        program = [*(["-m"] if entry.module else []), entry.name]
        server = [*entry.interpreter, _PROGRAM, str(descriptor), ",".join(plan["preload"]), *program]
        _servers[path] = subprocess.Popen(
            [*rank_wrapper, *server],
            env={**os.environ, **environment},
            cwd=plan["folder"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
        )
    processes.exempt.add(_servers[path].pid)
    return path


def imports(path: str) -> Callable[[], bool]:
    """A function that tells whether the server at *path* has imported the modules, or has ended: then it answers."""
    import _socket

    client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    client.setblocking(False)
    with contextlib.suppress(OSError):
        client.connect(path)
        client.shutdown(_socket.SHUT_WR)  # without a request, to which the answer is the end of the connection

    def are_done() -> bool:
        try:
            client.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            pass
        client.close()
        return True

    return are_done


@contextlib.contextmanager
def _listener(path: str) -> Iterator[int]:
    """The descriptor of a socket at *path* that accepts connections of this user alone; only the server keeps it."""
    import _socket  # `socket` takes longer to import than all of this

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(_WAITING)
        yield listener.fileno()
    finally:
        listener.close()
