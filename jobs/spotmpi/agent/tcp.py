"""Agents on machines of their own: each keeps a connection to node 0, from one attempt to the next."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple

from . import hardware, launchers, network, node, peers, processes, ssh
from .attempt_history import pods_at_work, was_moved
from .clock import Clock
from .connection import Connection, Heartbeat
from .context import AgentContext
from .elastic_coordinator import ElasticCoordinator
from .files import error_text
from .launch import Launch, gang_commands
from .node import location, start_sshd, write_environment
from .outcomes import INTERRUPTION, NOT_RETRYABLE, Outcome, StopSignal
from .plan import COORDINATOR, Member, nodes_in, read_member
from .pod_record import PodRecord
from .readiness import Readiness, Staging
from .record import Record, note_address, noted_address, recorded_first_attempt
from .remote_processes import StartServer
from .schema import MESSAGE_VERSION, Greeting

if TYPE_CHECKING:  # few runs need it
    from .checkpoint_copies import Exchange

# Seconds for a connection. Network policies drop the packets of a pod whose address they do not know yet, and the
# kernel sends the first one again only after a second.
CONNECT_TIMEOUT = 0.5
ANSWER_TIMEOUT = 10.0  # seconds: node 0 may still be querying its GPUs


class Tcp:
    """The transport of such agents, on *port* of node 0; JobSet or Slurm start all anew where a node is lost.

    *missing* says what the cluster lacks for a start of ranks, or None.
    """

    def __init__(self, port: int = peers.PORT, missing: Callable[[], str | None] | None = None) -> None:
        self._port = port
        self._missing = missing or (lambda: None)
        self.exchange: Exchange | None = None  # of checkpoints in memory
        self._starts: StartServer | None = None
        self._members: peers.Coordinator | None = None
        self._facts: hardware.Facts | None = None  # once node 0 is prepared
        self._readiness: Readiness | None = None

    def open_record(self, context: AgentContext) -> PodRecord:
        """The record in the run folder and on stdout."""
        os.makedirs(context.folder, exist_ok=True)
        limits = context.plan["limits"]
        # Without a run volume, no agent knows how many of the attempts that are allowed there were in earlier pods.
        most = 1 + limits["failures"] + limits["interruptions"]
        before = context.plan.get("attempts_before", 0) + context.restart_count * most
        return PodRecord(context.folder, context.clock, before)

    def open_members(self, context: AgentContext, number: int, record: Record) -> peers.Coordinator | Outcome:
        """Node 0's end of the connections to the other nodes, or the end of a run whose keys are of no use."""
        if self._members is not None and not self._members.closed:
            self._members.begin(number)
            return self._members
        own = None if context.slurm else network.own_address()
        if own is not None:
            note_address(context.folder, own)
        channel = self._channel(context)
        try:
            if "elastic" in context.plan:
                first = recorded_first_attempt(context.folder, repr(context.plan.get("submitted"))) or number
                began = pods_at_work(context.folder, first) is not None and not was_moved(context.folder)
                self._members = ElasticCoordinator(channel, context, number, record, began)
            else:
                at_work = pods_at_work(context.folder) if context.standby else None
                self._members = peers.Coordinator(channel, context, number, record, at_work)
        except ssh.InvalidKeys as error:
            return Outcome(NOT_RETRYABLE, str(error))
        return self._members

    def join(self, context: AgentContext, greeting: Greeting) -> Admission | str:
        """A worker's connection to node 0, or the reason why not yet.

        It is found at the address that it has noted in the run folder, or by its name. The name comes second: name
        servers keep an old answer, or that there is none, for 5 s or more (CoreDNS, plugins kubernetes and cache), and
        one that does not answer costs what the resolver waits (resolv.conf(5): 5 s, twice, for each search domain).
        """
        nodes = sum(role["count"] for role in context.plan["roles"]) + len(context.standby)
        answer: Admission | str = ""
        for host in filter(None, (noted_address(context.folder), context.hosts[0])):
            answer = join(host, self._channel(context), greeting, nodes)
            if not isinstance(answer, str):
                break
        return answer

    def _channel(self, context: AgentContext) -> peers.Channel:
        assert context.identity is not None, "agents on machines of their own have one"
        return peers.Channel(context.identity, self._port, context.clock, context.plan["limits"]["silence"])

    def prepare(
        self,
        context: AgentContext,
        number: int,
        stop_signal: StopSignal,
        record: Record,
        since: float,
    ) -> Launch | Outcome:
        """Node 0's launcher, once every host is ready and its data staged."""
        members = self._members
        assert members is not None, "they are opened first"
        for machine in nodes_in(members.machines).values():
            if self._facts is not None:  # it is paid for since the attempt before has ended
                machine["since"] = since
        try:
            members.machines[COORDINATOR] = hardware.identify(COORDINATOR, since)
            self._facts = node.prepare(context, self._facts)
            with contextlib.suppress(FileNotFoundError):
                os.remove(context.launchers_ended_file)
            processes.clear_shared_memory(context.mounts.shared_memory)
            members.hardware[COORDINATOR] = self._facts
            failure = self._expect(context, members).wait(context.plan["limits"]["start"], record, stop_signal)
            if failure is not None:
                return failure
        except node.Unfit as error:
            members.unfit[COORDINATOR] = str(error)
            return Outcome(INTERRUPTION, "node 0: %s" % error)
        except (ssh.InvalidKeys, hardware.Incompatible) as error:
            return Outcome(NOT_RETRYABLE, str(error))
        peer = next((worker.address for worker in nodes_in(members.workers).values()), None)
        context = node.connected(context.with_pods(members.pods), peer)
        if self._starts is not None:
            self._starts.begin(context.hosts)
        elif launchers.is_mpi(context.plan["launcher"]) and not context.slurm:
            self._starts = StartServer(context.start_socket, context.hosts, members.send_to, context.clock)
            members.relay = self._starts.relay
            start_sshd(context)
        environment = write_environment(context, number)
        commands = gang_commands(context.plan, [0], location(context, environment))
        return Launch(commands, environment, context.pid_file)

    def _expect(self, context: AgentContext, members: peers.Coordinator) -> Readiness:
        """What this attempt has to wait for; data is staged once, and again where that has failed."""
        if self._readiness is None or self._readiness.failure:
            staging, launcher = Staging(context.plan.get("staging"), context.mounts.cgroup), context.plan["launcher"]
            self._readiness = Readiness(
                lambda: context.with_pods(members.pods).hosts,
                members,
                staging,
                context.clock,
                not context.slurm and launchers.needs_names(launcher, len(context.hosts), context.plan["mpi"]["args"]),
                self._missing_here,
            )
        return self._readiness

    def _missing_here(self) -> str | None:
        return (None if self.exchange is None else self.exchange.missing()) or self._missing()


class Welcome(NamedTuple):
    """What an agent is to get ready for: an attempt, as which member, and of how many *nodes*, where that changes."""

    attempt: int
    member: Member
    nodes: Optional[int] = None


def read_welcome(message: Mapping[str, Any]) -> Welcome:
    """That in a message of node 0."""
    return Welcome(int(message["welcome"]), read_member(message["member"]), message.get("nodes"))


Admission = Tuple[Connection, Welcome]  # of an agent whom node 0 has welcomed


def join(host: str, channel: peers.Channel, greeting: Greeting, nodes: int = 2) -> Admission | str:
    """Connect to node 0 and be welcomed; the reason why not yet otherwise.

    *greeting* holds the name, restart count and machine of this worker, *nodes* how many there are in all.
    """
    identity, port, clock, silence = channel
    try:
        context = identity.connecting
        connection = Connection(socket.create_connection((host, port), timeout=CONNECT_TIMEOUT), context, clock)
    except ssh.InvalidKeys as error:  # node 0 has the same, and ends the run
        return str(error)
    except OSError as error:
        return "%s: %s" % (host, error_text(error))
    answer = _greet(connection, {"version": MESSAGE_VERSION, "run": identity.run, **greeting}, clock)
    if answer and "welcome" in answer:
        connection.admit(silence)
        connection.send(beat=1)
        connection.heartbeat = Heartbeat(lambda: [connection], lambda: connection.last_polled, nodes, clock)
        return connection, read_welcome(answer)
    connection.close()
    refusal = (answer or {}).get("refused")
    if isinstance(refusal, str):
        return "%s refuses this node: %s" % (host, ascii(refusal[:200]))
    if answer is None and not connection.failure:
        return "%s does not answer" % host
    return "%s is not node 0 of this run%s" % (host, connection.failure and ": %s" % connection.failure)


def _greet(connection: Connection, greeting: Greeting, clock: Clock) -> dict[str, Any] | None:
    """The answer of the other end to *greeting*, sent once it is authenticated; None where it gives none in time."""
    deadline, greeted = clock.uptime() + ANSWER_TIMEOUT, False
    while clock.uptime() < deadline and not connection.closed:
        messages = connection.receive(1)
        if messages:
            return messages[0]
        if connection.authenticated and not greeted:
            greeted = True
            connection.send(**greeting)
        connection.wait(0.2)
    return None
