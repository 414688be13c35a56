"""Agents on machines of their own: each keeps a connection to node 0, and exits when the attempt is over."""

from __future__ import annotations

import os

from . import hardware, peers, protocol, ssh
from .attempt import Launch
from .connection import Connection
from .context import AgentContext
from .launch import gang_commands
from .node import Daemon, check_hardware, place, unpack_code, write_environment
from .outcomes import NOT_RETRYABLE, Outcome, StopSource
from .plan import workers
from .pod_record import PodRecord
from .pool_coordinator import PoolCoordinator
from .readiness import Readiness
from .record import Record
from .schema import Greeting
from .staging import Staging
from .tls import Identity


class Tcp:
    """The transport of such agents, on *port* of node 0; JobSet starts all of them anew by their exit codes."""

    restarts = False

    def __init__(self, port: int = peers.PORT) -> None:
        self._port = port
        self._daemon: Daemon | None = None
        self._members: peers.Coordinator | None = None

    def open_record(self, context: AgentContext) -> PodRecord:
        """The record in the run folder and on stdout."""
        os.makedirs(context.folder, exist_ok=True)
        before = context.plan.get("attempts_before", 0) + context.generation
        return PodRecord(context.folder, context.clock, before)

    def open_members(self, context: AgentContext, number: int, record: Record) -> peers.Coordinator | Outcome:
        """Node 0's end of the connections to the other nodes, or the end of a run whose keys are of no use."""
        count, role, identity = len(context.hosts), workers(context.plan), _identity(context)
        try:
            if role is None:
                self._members = peers.Coordinator(
                    identity, count, context.generation, number, self._port, context.clock
                )
            else:
                self._members = PoolCoordinator(
                    identity, count, context.generation, number, record, role["table"], self._port, context.clock
                )
        except ssh.InvalidKeys as error:
            return Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
        return self._members

    def join(self, context: AgentContext, greeting: Greeting) -> tuple[Connection, int] | str:
        """A worker's connection to node 0 and the attempt's number, or the reason why not yet."""
        return peers.join(context.hosts[0], _identity(context), greeting, self._port, context.clock)

    def prepare(
        self,
        context: AgentContext,
        number: int,
        stop_source: StopSource,
        record: Record,
        since: float,
    ) -> Launch | Outcome:
        """Node 0's launcher, once every host is ready and its data staged."""
        members = self._members
        assert members is not None, "they are opened first"
        try:
            members.machines[0] = hardware.identify(0, since)
            members.hardware[0] = check_hardware(context)
            unpack_code(context)
            self._daemon = Daemon(context)
            staging = Staging(context.plan.get("staging"), context.mounts.cgroup)
            readiness = Readiness(context.hosts, members, staging, context.clock, fixed_names=context.slurm)
            failure = readiness.wait(context.plan["limits"]["start"], record, stop_source)
            if failure is not None:
                return failure
            self._daemon.pin(readiness.addresses)
        except (ssh.InvalidKeys, hardware.Incompatible) as error:
            return Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
        environment = write_environment(context, number)
        commands = gang_commands(context.plan, [0], place(context, environment))
        return Launch(commands, environment, context.pid_file)

    def node_error(self) -> str | None:
        """That sshd has ended on node 0."""
        return self._daemon.error() if self._daemon else None

    def oom_nodes(self, context: AgentContext) -> list[int]:
        """Those by the control group of this pod, and those that have said so."""
        return [
            *([0] if hardware.oom_kills(context.mounts.cgroup) else []),
            *sorted(self._members.oom_killed if self._members else ()),
        ]

    def remote_launchers(self, context: AgentContext) -> int:
        """How many other nodes start a launcher of their own."""
        return context.launcher_count - 1


def _identity(context: AgentContext) -> Identity:
    """What this agent and the others know each other by."""
    assert context.identity is not None, "agents on machines of their own have one"
    return context.identity
