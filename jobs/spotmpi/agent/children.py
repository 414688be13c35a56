"""Runs whose processes are all children of node 0's agent: those on this machine."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Dict, Optional

from . import launchers, processes
from .clock import Clock
from .context import PID_FILE, AgentContext, Members, Mounts
from .launch import Launch, Location, gang_commands, launcher_count, local_location
from .launcher_output import Line
from .outcomes import Outcome, StopSignal
from .plan import COORDINATOR, read_plan
from .record import Record

if TYPE_CHECKING:
    import socket

    from .local_nodes import LocalNodes


def read_context(mounts: Mounts, clock: Clock) -> AgentContext:
    """That of the agent of the run whose plan is in *mounts*."""
    return AgentContext(read_plan(mounts.plan), COORDINATOR, 0, None, mounts, clock)


class Children:
    """The transport of a run on one machine; the agent of node 0 starts its attempts one after the other."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._reserved: Optional[socket.socket] = None
        self._nodes: Optional[LocalNodes] = None  # of a run that may have fewer

    def open_record(self, context: AgentContext) -> Record:
        """The record in the run folder, which exists."""
        return Record(context.folder, context.clock)

    def open_members(self, context: AgentContext, number: int, record: Record) -> Members:
        """None, or the nodes of a run that may have fewer."""
        if "elastic" not in context.plan:
            return Members()
        if self._nodes is None:
            from .local_nodes import LocalNodes  # few runs need them

            self._nodes = LocalNodes(context)
        self._nodes.begin(number)
        return self._nodes

    def prepare(
        self,
        context: AgentContext,
        number: int,
        stop_signal: StopSignal,
        record: Record,
        since: float,
    ) -> Launch | Outcome:
        """The launchers of all nodes, and the workers of a pool or stream."""
        outcome = self._nodes.wait(stop_signal, record) if self._nodes else None
        if outcome is not None:
            return outcome
        plan = context.with_pods(self._nodes.pods if self._nodes else None).plan
        session = {**self._session(context, number), **_shared_memory(context)}
        environment = {**session, **plan["environment"]}
        location = local_location(plan, self._python, os.geteuid() == 0)
        if location.control is not None:  # first: their server may be that of the ranks
            location = location._replace(worker_forks=_worker_forks(context, location, environment))
        if plan.get("preload"):
            location = location._replace(fork_socket=_fork_socket(context, location, environment, number, record))
        commands = gang_commands(plan, range(launcher_count(plan)), location)
        if location.control is not None or launchers.PORT in str(commands):
            # A port that nobody else gets until the next attempt.
            if self._reserved is not None:
                self._reserved.close()
            self._reserved = reserve_port()
            location = location._replace(port=str(self._reserved.getsockname()[1]))
            commands = gang_commands(plan, range(launcher_count(plan)), location)
        replicas = None
        if location.control is not None:
            from .replicas import Replicas  # other runs do without

            replicas = Replicas(context, location)
        return Launch(commands, environment, os.path.join(context.folder, PID_FILE), replicas)

    def _session(self, context: AgentContext, number: int) -> dict[str, str]:
        """Mpirun's variables for an attempt; none where the user or the spec sets any such.

        Open MPI 5 refuses a folder for all nodes together with one for this node or the others.
        """
        if any(name.endswith("tmpdir_base") for name in (*os.environ, *context.plan["environment"])):
            return {}
        return launchers.session_environment(os.path.join(context.mounts.work, str(number)))


def _shared_memory(context: AgentContext) -> dict[str, str]:
    """MPI's variables for its files in memory, without those that an earlier attempt has left.

    Empty where the user or the spec names a folder for them, or memory cannot have one.
    """
    plan, folder = context.plan, context.mounts.shared_memory
    if folder is None or not launchers.is_mpi(plan["launcher"]):
        return {}
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        processes.clear_shared_memory(folder)
        return launchers.memory_environment(folder, plan["mpi"]["family"], (*os.environ, *plan["environment"]))
    return {}


def _fork_socket(
    context: AgentContext, location: Location, environment: Dict[str, str], number: int, record: Record
) -> str | None:
    """Where ranks are forked; None where they cannot be, with a line that says why if the plan asks for it."""
    from . import preload  # other runs do without

    try:
        server = preload.of_ranks(context.plan, context.mounts.work)
        if server is not None:
            preload.serve(server, context.plan["folder"], location.rank_wrapper, environment)
        return None if server is None else server.path
    except OSError as error:
        record.line(number, COORDINATOR, Line(None, "e", "ranks start without preload: %s" % (error.strerror or error)))
        return None


def _worker_forks(context: AgentContext, location: Location, environment: Dict[str, str]) -> Dict[str, str]:
    """Where the processes of a pool or stream are forked, by roles; nowhere for one that gets new interpreters."""
    from . import preload  # other runs do without

    found: Dict[str, str] = {}
    servers = preload.of_workers(context.plan, context.mounts.work, location.pool_python(context.plan))
    for role, server in servers.items():
        with contextlib.suppress(OSError):
            preload.serve(server, context.plan["folder"], location.rank_wrapper, environment)
            found[role] = server.path
    return found


def reserve_port() -> socket.socket:
    """A socket that keeps a free port of this machine for one who binds to it with SO_REUSEADDR, until it is closed.

    A port that was merely free a moment ago can be that of anybody's connection when a launcher has imported its
    packages and listens. The kernel gives a port that is bound to no other connection, and lets a second socket listen
    on it if both have SO_REUSEADDR (man 7 socket), as those of PyTorch's TCPStore, asyncio and Tornado have.
    """
    import socket  # mpirun needs no port

    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _bound(socket.AF_INET6)
    return _bound(socket.AF_INET)


def _bound(family: socket.AddressFamily) -> socket.socket:
    import socket

    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.bind(("", 0))
    except OSError:
        reserved.close()
        raise
    return reserved
