"""How the agents of a run communicate: every worker keeps one connection to node 0, the coordinator.

Messages are JSON objects, one a line, over TLS in which both ends show the run's certificate. A connection
that closes, or is silent for too long (see `connection`), is a lost host.

    worker -> node 0   {"version": 1, "run": name, "member": "node/1", "restart_count": 0, "machine": {...}}
    node 0 -> worker   {"version": 1, "welcome": attempt} or {"refused": reason}; where pods stand by, with "member",
                       and with "nodes" where that number changes

    worker -> node 0   {"beat": 1}                        at once after the welcome, then as heartbeat
                       {"notice": reason}                 its machine is about to go away; with "unfit", is at fault
    with "attempt":    {"ready": 1, "hardware": {...}}    ranks can start and its data is staged; its hardware, and the
                                                          "nodes" of its welcome
                       {"oom_killed": 1}                  the kernel killed a process of its pod for lack of memory
                       {"ranks": {rank: state}}           which of its ranks are there, and are busy or idle
                       {"ended": code, "reason": ...}     its launcher has ended, or could not be started
                       {"idle": 1}                        no process of the attempt is left on its node
                       {"start": n, "output": ...}        what request n of mpirun has printed, or with "code" its end
    node 0 -> worker   {"beat": 1}                        heartbeat
                       {"go": 1}                          start your launcher, if you have one
                       {"start": n, "command": ..., "attempt": attempt}  start a process for mpirun
                       {"leave": reason}                  give notice for this reason
                       {"end": attempt}                   kill what is left of this attempt
                       {"welcome": attempt}               get ready for this one, once nothing is left of the last;
                                                          where pods stand by, with the "member" that the worker has now
                       {"over": 1, "exit_code": ...}      exit; with the code of the run, if that has ended
"""

from __future__ import annotations

import errno
import resource
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from . import network
from .assignment import ExpectedPods, Promotion
from .clock import CLOCK, Clock
from .connection import Connection, Heartbeat, Identity
from .context import Members
from .files import error_text
from .plan import COORDINATOR, NODE, STANDBY, Member, read_member
from .schema import MESSAGE_VERSION, Greeting
from .ssh import InvalidKeys

PORT = 2223
# Seconds for a connection. Network policies drop the packets of a pod whose address they do not know yet, and the
# kernel sends the first one again only after a second.
CONNECT_TIMEOUT = 0.5
ANSWER_TIMEOUT = 10.0  # seconds: node 0 may still be querying its GPUs
SILENCE = 1.0  # seconds after which a host counts as lost that acknowledges nothing, unless the spec says otherwise
MAX_UNAUTHENTICATED = 64  # connections, besides one for each node, that node 0 keeps before it has welcomed them
_HANDSHAKE_TIME = 1.0  # seconds that the only connection of an address has before it makes room for others
# Seconds of handshakes, about 1 ms each, between two looks at workers. The oldest come first, so that some finish early
# where node 0 has little of a processor.
_HANDSHAKES = 0.1
_DISMISSAL = 2.0  # seconds in which a worker that is to leave gives notice
_CLOSE_GRACE = 1.0  # seconds in which workers read the last message
_ACCEPT_PAUSE = 1.0  # seconds without accepting anybody after descriptors have run out
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Channel(NamedTuple):
    """What both ends of a connection have in common: the run, the port of node 0, the clock and the seconds of silence.

    A host that acknowledges nothing for *silence* seconds is lost.
    """

    identity: Identity
    port: int = PORT
    clock: Clock = CLOCK
    silence: float = SILENCE


class Coordinator(Members):
    """Node 0's end: the connections to all workers, and what they reported in this attempt.

    Workers of another run are refused. So are those with another restart count than *expected* (pods from before the
    restart), or, where pods are replaced, with a lower one than a worker of the same name had: there a node that is
    lost, or about to go, makes room at the next attempt for a new pod.

    A client that proves nothing costs one of a limited number of descriptors, and loses it to later ones, first to
    those of its own address, or after `GREETING_TIMEOUT`.

    Raises:
        InvalidKeys: the run's Secret has no TLS files, or they are of no use.
    """

    def __init__(self, channel: Channel, expected: ExpectedPods, attempt: int) -> None:
        super().__init__()
        self._channel = channel
        self._clock = channel.clock
        self._restart_counts: dict[Member, int] = {}  # of the newest pod of each name, where pods are replaced
        self.closed = False
        self.relay: Callable[[dict[str, Any]], None] = lambda message: None  # takes answers to `send_to`
        self.workers: dict[Member, Connection] = {}
        self.ready: set[Member] = set()
        self.oom_killed: set[Member] = set()
        self._context = channel.identity.accepting
        self._nodes = expected.nodes
        self._counts = {NODE: expected.nodes, STANDBY: expected.standby}
        self._restart_count = expected.restart_count
        self._attempt = attempt
        # Oldest first; those that have authenticated themselves stay until their greeting.
        self._unauthenticated: dict[Connection, None] = {}
        self._limit = _limit_unauthenticated(expected.nodes + expected.standby)
        self._accept_after = 0.0  # as `Clock.uptime` counts
        self._unconfirmed: set[Member] = set()  # welcomed, but without a message since
        self._listener = network.listen(channel.port)
        self._listener.setblocking(False)
        self._last_polled = self._clock.uptime()
        self._heartbeat = Heartbeat(
            lambda: list(self.workers.values()), lambda: self._last_polled, expected.nodes, channel.clock
        )

    def begin(self, attempt: int) -> None:
        """Begin the next attempt with the same workers, each of which gets ready for it anew, and with new ones."""
        self._attempt = attempt
        for node in self._leaving():
            self.workers[node].close()
            self._forget(node)
            self.notices.pop(node, None)
        for reported in (self.ready, self.oom_killed, self.ended, self.ranks, self.idle, self.unfit):
            reported.clear()
        self._fill_vacancies()
        for node in self.workers:
            self._welcome(node)

    def _fill_vacancies(self) -> list[Promotion]:
        """Let pods that stand by do the work of nodes that are lost, as far as there are any."""
        return []

    def _member_of(self, pod: Member) -> Member:
        """The member whose work a pod does: the one that it was at the beginning, unless pods stand by."""
        return pod

    def _welcome(self, node: Member, **more: Any) -> None:
        """Let a worker get ready for the current attempt."""
        worker = self.workers[node]
        if not worker.closed:
            worker.send(**more, welcome=self._attempt)

    @property
    def hint(self) -> str:
        """What happens while nodes are missing, where that is more than to wait."""
        return ""

    def is_whole(self) -> bool:
        """Whether no node of the gang is lost, or about to go away."""
        return not self._leaving()

    def _leaving(self) -> list[Member]:
        """The nodes that are lost or about to go away."""
        return [node for node, worker in self.gang.items() if worker.lost or node in self.notices]

    def missing(self) -> list[int]:
        """The nodes that are not ready yet."""
        return [node for node in range(1, self._nodes) if Member(NODE, node) not in self.ready]

    def lost(self) -> list[Member]:
        """The nodes whose connection is lost though they have not reported their end."""
        return [node for node, worker in self.gang.items() if worker.lost and node not in self.ended]

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, waiting at most *timeout* seconds for something."""
        with selectors.PollSelector() as selector:  # which needs no descriptor, as there may be none left
            if self._clock.uptime() >= self._accept_after:
                selector.register(self._listener, selectors.EVENT_READ, None)
            for connection in [*self._unauthenticated, *self.workers.values()]:
                connection.register(selector)
            until: float | None = None
            for key, _ in selector.select(timeout):
                if key.data is None:
                    self._accept()
                elif key.data in self._unauthenticated:
                    if until is None or self._clock.uptime() < until:
                        self._admit(key.data)
                    until = until or self._clock.uptime() + _HANDSHAKES
                else:
                    for message in key.data.receive():
                        self._handle(key.data, message)
        self._last_polled = self._clock.uptime()
        for connection in [*self._unauthenticated, *self.workers.values()]:
            connection.last_polled = self._last_polled
        for connection in [each for each in self._unauthenticated if each.lost]:
            self._drop(connection)
        for node in [node for node in self._unconfirmed if self.workers[node].lost]:
            self._forget(node)

    def dismiss(self, node: Member, reason: str) -> None:
        """Let a worker leave the run, and wait until it says so: then it does not join again."""
        worker, deadline = self.workers[node], self._clock.uptime() + _DISMISSAL
        if not worker.closed:
            worker.send(leave=reason)
        while node not in self.notices and not worker.lost and self._clock.uptime() < deadline:
            self.serve(0.05)

    def broadcast(self, **message: Any) -> None:
        """Send a message to every member."""
        self._send(self.workers, message)

    def broadcast_to_gang(self, **message: Any) -> None:
        """Send a message to every node."""
        self._send(self.gang, message)

    def send_to(self, node: int, **message: Any) -> bool:
        """Send a message of this attempt to a node, from any thread; whether that is connected."""
        worker = self.workers.get(Member(NODE, node))
        if worker is None or worker.closed:
            return False
        worker.send(attempt=self._attempt, **message)
        return True

    def _send(self, workers: Mapping[Member, Connection], message: Mapping[str, Any]) -> None:
        for worker in workers.values():
            if not worker.closed:
                worker.send(**message)

    def close(self) -> None:
        """Close all connections, once workers have read the last message.

        A connection that is closed before heartbeats were read that have arrived is reset: the worker that sends the
        next one then finds it broken, and reads nothing more.
        """
        self.closed = True
        self._heartbeat.stop()
        deadline = self._clock.uptime() + _CLOSE_GRACE
        for worker in self.workers.values():
            worker.finish()
        while any(not worker.closed for worker in self.workers.values()) and self._clock.uptime() < deadline:
            for worker in self.workers.values():
                worker.receive()
            self._clock.sleep(0.005)
        for connection in [*self._unauthenticated, *self.workers.values()]:
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        """Accept waiting clients, as far as there are descriptors: unauthenticated ones make room."""
        for _ in range(self._limit):
            dispensable = self._most_dispensable() if len(self._unauthenticated) >= self._limit else None
            if dispensable and self._is_in_time(dispensable):
                return  # as when all workers come at once
            try:
                connection = Connection(self._listener.accept()[0], self._context, self._clock)
            except BlockingIOError:
                return
            except OSError as error:  # other errors: the client has disconnected already
                if error.errno in _EXHAUSTED:
                    if self._unauthenticated:
                        self._drop(self._most_dispensable())
                    else:
                        self._accept_after = self._clock.uptime() + _ACCEPT_PAUSE
                return
            if dispensable:
                self._drop(dispensable)
            self._unauthenticated[connection] = None

    def _most_dispensable(self) -> Connection:
        """The oldest unauthenticated connection from the address that has most: a stranger's flood drops its own."""
        counts = Counter(connection.address for connection in self._unauthenticated)
        return max(self._unauthenticated, key=lambda connection: counts[connection.address])

    def _is_in_time(self, connection: Connection) -> bool:
        """Whether this may be a worker that is about to prove itself: the only connection of its address, and new."""
        is_new = self._clock.uptime() < connection.last_received + _HANDSHAKE_TIME
        return is_new and sum(each.address == connection.address for each in self._unauthenticated) == 1

    def _drop(self, connection: Connection) -> None:
        connection.close()
        del self._unauthenticated[connection]

    def _forget(self, node: Member) -> None:
        """Forget a worker. With one that gave up before its welcome arrived nothing is lost, and it connects again."""
        self._unconfirmed.discard(node)
        self.hardware.pop(node, None)
        del self.workers[node], self.machines[node]

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take a message of a node into account; all but a notice are of an attempt."""
        node = next(node for node, worker in self.workers.items() if worker is connection)
        self._unconfirmed.discard(node)
        if "notice" in message:
            self.notices[node] = str(message["notice"])
            if "unfit" in message:
                self.unfit[node] = self.notices[node]
        elif message.get("attempt") != self._attempt:
            return  # of one before
        elif "ready" in message:
            self.ready.add(node)
            self.hardware[node] = message.get("hardware") or {}
        elif "start" in message:
            self.relay(message)
        elif "idle" in message:
            self.idle.add(node)
        elif "oom_killed" in message:
            self.oom_killed.add(node)
        elif "ranks" in message:
            self.ranks[node] = {int(rank): str(state) for rank, state in message["ranks"].items()}
        elif "ended" in message:
            self.ended[node] = (int(message["ended"]), str(message.get("reason")))

    def _admit(self, connection: Connection) -> None:
        """Welcome a client whose greeting says that it is a worker of this attempt; refuse it otherwise."""
        for greeting in connection.receive(1):
            pod, restart_count = _pod(greeting), greeting.get("restart_count")
            refusal: str | None = "not of this run"
            if greeting.get("run") == self._channel.identity.run and pod is not None and type(restart_count) is int:
                refusal = self._refusal(pod, restart_count)
            if pod is None or refusal is not None:
                connection.send(refused=refusal)
                self._drop(connection)
                return
            connection.admit(self._channel.silence)
            del self._unauthenticated[connection]
            member = self._member_of(pod)
            self.workers[member] = connection
            self._welcome(member, version=MESSAGE_VERSION)  # before any heartbeat
            self._unconfirmed.add(member)
            self.machines[member] = {**(greeting.get("machine") or {}), "member": member.text}

    def _superseded(self, pod: Member, restart_count: int) -> str | None:
        """Why an older pod than one that has joined is not welcome; None for the newest, which is noted."""
        if restart_count < self._restart_counts.get(pod, 0):
            return "a newer pod of %s has joined" % (pod,)
        self._restart_counts[pod] = restart_count
        return None

    def _refusal(self, pod: Member, restart_count: int) -> str | None:
        """Why an authenticated worker is not welcome, or None."""
        if self._restart_count is not None and restart_count != self._restart_count:
            return "restart count %s is not %d" % (restart_count, self._restart_count)
        if pod == COORDINATOR or pod.number >= self._counts.get(pod.role, 0):
            return "%s is not expected" % (pod,)
        reason = self._superseded(pod, restart_count)
        if reason:
            return reason
        member = self._member_of(pod)
        if member not in self.workers:
            return None
        if self._restart_count is not None:
            return "%s is not expected" % (pod,)
        # Its agent, or that of its next pod, has no other connection: the attempt ends as soon as this one is lost.
        self.workers[member].close()
        return "the attempt of the pod before has not ended"


def _pod(greeting: Mapping[str, Any]) -> Member | None:
    """The pod that greets, by the member that it was created as; None where it is none."""
    try:
        return read_member(str(greeting.get("member")))
    except ValueError:
        return None


def _limit_unauthenticated(nodes: int) -> int:
    """How many connections node 0 keeps unauthenticated, with the descriptors that it may open raised for all nodes.

    The soft limit is often 1024, which fewer than 1,000 nodes would use up.
    """
    limit = MAX_UNAUTHENTICATED + nodes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * limit:
        soft = min(4 * limit, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(limit, max(soft // 4, 1))


class Admission(NamedTuple):
    """A worker's connection to node 0, its attempt and, where pods stand by, the member that it is.

    *nodes* is how many the attempt has, where that changes.
    """

    connection: Connection
    attempt: int
    member: Optional[Member]
    nodes: Optional[int] = None


def join(host: str, channel: Channel, greeting: Greeting, nodes: int = 2) -> Admission | str:
    """Connect to node 0 and be welcomed; the reason why not yet otherwise.

    *greeting* holds the name, restart count and machine of this worker, *nodes* how many there are in all.
    """
    identity, port, clock, silence = channel
    try:
        context = identity.connecting
        connection = Connection(socket.create_connection((host, port), timeout=CONNECT_TIMEOUT), context, clock)
    except InvalidKeys as error:  # node 0 has the same, and ends the run
        return str(error)
    except OSError as error:
        return "%s: %s" % (host, error_text(error))
    answer = _greet(connection, {"version": MESSAGE_VERSION, "run": identity.run, **greeting}, clock)
    if answer and "welcome" in answer:
        connection.admit(silence)
        connection.send(beat=1)
        connection.heartbeat = Heartbeat(lambda: [connection], lambda: connection.last_polled, nodes, clock)
        member = answer.get("member")
        own = None if member is None else read_member(member)
        return Admission(connection, int(answer["welcome"]), own, answer.get("nodes"))
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
