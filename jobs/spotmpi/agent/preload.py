"""The fork servers of an agent start before its first attempt and outlive all; where one ended, another starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Dict, List, NamedTuple

from . import launchers, processes
from .plan import RunPlan, gang, workers

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
_WAITING = 1024  # rank wrappers whose requests wait while the server imports
_servers: Dict[str, subprocess.Popen[bytes]] = {}  # by the paths of their sockets


class ForkServer(NamedTuple):
    """Where a server forks processes for *command*, once it has imported *modules* in its *environment*."""

    path: str
    command: List[str]
    modules: List[str]
    environment: Mapping[str, str] = {}  # besides that of the run


def of_ranks(plan: RunPlan, folder: str) -> ForkServer | None:
    """The server of the ranks of a plan, in a *folder* of this node alone; None where it has no such ranks."""
    if not plan.get("preload"):
        return None
    from . import fork_server  # delays no start of others

    command = gang(plan)["command"]
    is_possible = fork_server.entry(command) is not None
    return ForkServer(os.path.join(folder, "fork.sock"), command, plan["preload"]) if is_possible else None


def of_workers(plan: RunPlan, folder: str, python: str) -> Dict[str, ForkServer]:
    """The servers of a pool's or stream's processes by the roles of its workers; that of `WORKER` forks its scheduler.

    Roles with the same variables share one: libraries of mathematics read the number of threads when they are imported.
    It is that of a pipeline's ranks as well, where the same interpreter runs them: others import what workers may not
    have, such as MPI, which is initialized in each fork.
    """
    servers: List[ForkServer] = []
    found: Dict[str, ForkServer] = {}
    ranks = of_ranks(plan, folder)
    for name, role in workers(plan).items():
        own = {key: value for key, value in role["environment"].items() if plan["environment"].get(key) != value}
        same = next((each for each in servers if each.environment == own), None)
        if same is None:
            modules = [launchers.POOL_WORKER, *([] if servers else [launchers.POOL_SCHEDULER])]
            of_pipeline = ranks is not None and ranks.modules == launchers.PIPELINE_MODULES
            if ranks is not None and of_pipeline and not own and ranks.command[:2] == [python, "-m"]:
                same = ranks._replace(modules=[*ranks.modules, *modules])
            else:
                path = os.path.join(folder, "fork-%d.sock" % len(servers))
                same = ForkServer(path, [python, "-m", launchers.POOL_WORKER], modules, own)
            servers.append(same)
        found[name] = same
    return found


def serve(server: ForkServer, folder: str, rank_wrapper: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the *server*, with the working *folder* of ranks, unless it runs.

    The *rank_wrapper* lets it end with this agent; *environment* is that of the run.

    Raises:
        OSError: there can be no server.
    """
    path = server.path
    before = _servers.get(path)
    if before is not None:
        if before.poll() is None:
            return
        processes.exempt.discard(before.pid)
    from . import fork_server

    entry = fork_server.entry(server.command)
    assert entry is not None, "there is a server for such commands alone"
    with _listener(path) as descriptor:
        program = [*(["-m"] if entry.module else []), entry.name]
        command = [*entry.interpreter, _PROGRAM, str(descriptor), ",".join(server.modules), *program]
        _servers[path] = subprocess.Popen(
            [*rank_wrapper, *command],
            env={**os.environ, **environment, **server.environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
        )
    processes.exempt.add(_servers[path].pid)


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
    for each in (path, path + ".ended"):  # the latter is of rank wrappers, of which one reports the end of a server
        with contextlib.suppress(FileNotFoundError):
            os.remove(each)
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
