"""How the agents of a run communicate: every other one keeps one connection to node 0, the coordinator.

Nodes are members of an attempt, which is over once one is lost. Workers of a pool or stream, and pods that stand by for
lost nodes, come and go while it goes on.

Messages are JSON objects, one a line, over TLS in which both ends show the run's certificate. A connection
that closes, or is silent for too long (see `connection`), is a lost host.

    worker -> node 0   {"version": 1, "run": name, "member": "node/1", "restart_count": 0, "machine": {...}}
    node 0 -> worker   {"version": 1, "welcome": attempt, "member": "node/1"} or {"refused": reason}; the member whose
                       work it does, and with "nodes" where that number changes

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
                       {"welcome": attempt, "member": ...}  get ready for this one, once nothing is left of the last
                       {"over": 1, "exit_code": ...}      exit; with the code of the run, if that has ended
"""

from __future__ import annotations

import errno
import resource
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Dict, List, NamedTuple, Optional

from . import network, protocol, record
from .clock import CLOCK, Clock
from .connection import Connection, Heartbeat, Identity
from .context import AgentContext, Members
from .launcher_output import Line
from .plan import COORDINATOR, NODE, STANDBY, Member, read_member, workers
from .schema import MESSAGE_VERSION

PORT = 2223
SILENCE = 1.0  # seconds after which a host counts as lost that acknowledges nothing, unless the spec says otherwise
JOIN_GRACE = 5.0  # seconds in which agents that live join the next agent of node 0, before others take their places
CONNECTION_LOST = "node 0 lost the connection to it"  # why a worker, or a pod that stood by, left
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


class Promotion(NamedTuple):
    """A pod that stood by and does the work of a node now."""

    node: Member
    pod: Member
    replaced: Member  # the pod that did it before
    standby: Member  # where the promoted pod stood by


class Assignment:
    """The pod of each member, of *nodes* and of those that stand by, as many as *standby*.

    Pods are named by the member that they are at the beginning: a node, or one that stands by. Each does the work of
    that member until one that stands by is promoted: it exchanges its work with the pod of the lost node, whose next
    pod then stands by. Node 0 keeps its pod.

    *at_work* are the pods that did the work of the nodes in the last attempt, if there was one; others than *nodes*
    pods of this run, with that of node 0 first, are ignored.
    """

    def __init__(self, nodes: int, standby: int, at_work: Optional[Sequence[Member]]) -> None:
        gang = [Member(NODE, index) for index in range(nodes)]
        others = [Member(STANDBY, index) for index in range(standby)]
        members, working = [*gang, *others], list(at_work or ())
        distinct = set(working)
        if not (len(working) == len(distinct) == nodes and working[0] == COORDINATOR and distinct <= set(members)):
            working = gang  # the record is of another size, or damaged
        at_nodes = set(working)
        pods = working + [pod for pod in members if pod not in at_nodes]
        self.pods: Dict[Member, Member] = dict(zip(members, pods))  # noqa: B905 (Python 3.8 has no strict)

    @property
    def at_work(self) -> List[Member]:
        """The pods that do the work of the nodes."""
        return [pod for member, pod in self.pods.items() if member.role == NODE]

    def of(self, pod: Member) -> Member:
        """The member whose work a pod does; of a worker that is itself."""
        if self.pods.get(pod) == pod:
            return pod
        return next((member for member, each in self.pods.items() if each == pod), pod)

    def promote(self, vacant: Iterable[Member], ready: Collection[Member]) -> List[Promotion]:
        """Assign *vacant* nodes to pods that stand by, as far as there are any in *ready*."""
        promotions = []
        for node, member in zip(sorted(vacant), sorted(ready)):  # noqa: B905 (Python 3.8 has no strict)
            pod, replaced = self.pods[member], self.pods[node]
            self.pods[node], self.pods[member] = pod, replaced
            promotions.append(Promotion(node, pod, replaced, member))
        return promotions


class Coordinator(Members):
    """Node 0's end: the connections to all others, and what they reported in this attempt.

    Those of another run are refused. So are those with another restart count than node 0 (pods from before the
    restart), or, where pods are replaced, with a lower one than another pod of the same name had: there a node that is
    lost, or about to go, makes room at the next attempt for a new pod. So are workers, of which there may be any
    number: their restart count is how many pods their index had before.

    At the beginning of an attempt, and while one waits for nodes, pods that stand by and are ready take the places of
    lost nodes; *at_work* as for `Assignment`. *run_record* gets an event for each of them, and each worker, that is
    ready, leaves or is promoted.

    A client that proves nothing costs one of a limited number of descriptors, and loses it to later ones, first to
    those of its own address, or after `GREETING_TIMEOUT`.

    Raises:
        InvalidKeys: the run's Secret has no TLS files, or they are of no use.
    """

    def __init__(
        self,
        channel: Channel,
        context: AgentContext,
        attempt: int,
        run_record: record.Record,
        at_work: Sequence[Member] | None = None,
    ) -> None:
        super().__init__()
        nodes, standby = len(context.hosts), len(context.standby)
        self._channel = channel
        self._clock = channel.clock
        self._record = run_record
        self._host = context.host
        self._roles = workers(context.plan)
        self._changes = bool(standby) or "elastic" in context.plan  # whether pods do the work of other members
        self._assignment = Assignment(nodes, standby, at_work)
        # Workers, and members that stand by, that have been ready since their agent has joined.
        self._prepared: set[Member] = set()
        self._last_seen: dict[Member, float] = {}  # when a node's lost agent was last heard, as `Clock.uptime` counts
        self._promoted: dict[Member, Promotion] = {}  # by node, until the ranks are started
        self._fill_after = self._clock.uptime() + JOIN_GRACE
        self._restart_counts: dict[Member, int] = {}  # of the newest pod of each name, where pods are replaced
        self.closed = False
        self.relay: Callable[[dict[str, Any]], None] = lambda message: None  # takes answers to `send_to`
        self.workers: dict[Member, Connection] = {}
        self.ready: set[Member] = set()
        self._context = channel.identity.accepting
        self._nodes = nodes
        self._counts = {NODE: nodes, STANDBY: standby}
        # Where pods are replaced one by one, each name has its own.
        self._restart_count = None if context.replaces_nodes or self._changes else context.restart_count
        self._attempt = attempt
        # Oldest first; those that have authenticated themselves stay until their greeting.
        self._unauthenticated: dict[Connection, None] = {}
        self._limit = _limit_unauthenticated(nodes + standby)
        self._accept_after = 0.0  # as `Clock.uptime` counts
        self._unconfirmed: set[Member] = set()  # welcomed, but without a message since
        self._listener = network.listen(channel.port)
        self._listener.setblocking(False)
        self._last_polled = self._clock.uptime()
        self._heartbeat = Heartbeat(
            lambda: list(self.workers.values()), lambda: self._last_polled, nodes, channel.clock
        )

    def begin(self, attempt: int) -> None:
        """Begin the next attempt with the same agents, each of which gets ready for it anew, and with new ones.

        Pods that stood by take the places of nodes that are lost or about to go away.
        """
        self._attempt = attempt
        for node in self._leaving():
            self._last_seen[node] = self.workers[node].last_received
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
        ready = self._standing_by()
        vacant = [node for node in map(_node, range(1, self._nodes)) if node not in self.workers] if ready else []
        promotions = self._assignment.promote(vacant, ready)
        for promotion in promotions:
            self._prepared.discard(promotion.standby)
            self.workers[promotion.node] = self.workers.pop(promotion.standby)
            self.machines[promotion.node] = {**self.machines.pop(promotion.standby), "member": promotion.node.text}
            before = self._promoted.get(promotion.node, promotion)
            self._promoted[promotion.node] = promotion._replace(replaced=before.replaced)
        return promotions

    def _standing_by(self) -> list[Member]:
        """The members that stand by and are ready."""
        return [member for member in self._prepared if member.role == STANDBY]

    def _welcome(self, node: Member, **more: Any) -> None:
        """Let a member get ready for the current attempt."""
        worker = self.workers[node]
        if not worker.closed:
            worker.send(**more, welcome=self._attempt, member=node.text)

    @property
    def pods(self) -> list[Member] | None:
        """The pod of each node, where that changes."""
        return self._assignment.at_work if self._changes else None

    @property
    def standby_ready(self) -> int:
        """How many pods stand by and are ready."""
        return len(self._standing_by())

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
        return [node for node in range(1, self._nodes) if _node(node) not in self.ready]

    def lost(self) -> list[Member]:
        """The nodes whose connection is lost though they have not reported their end."""
        return [node for node, worker in self.gang.items() if worker.lost and node not in self.ended]

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, waiting at most *timeout* seconds for something, and replace lost nodes."""
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
        for member in [each for each, worker in self.workers.items() if each.role != NODE and worker.lost]:
            self._lose(member)
        if self._clock.uptime() >= self._fill_after:
            for promotion in self._fill_vacancies():
                self._welcome(promotion.node)

    def dismiss(self, node: Member, reason: str) -> None:
        """Let a worker leave the run, and wait until it says so: then it does not join again."""
        worker, deadline = self.workers[node], self._clock.uptime() + _DISMISSAL
        if not worker.closed:
            worker.send(leave=reason)
        while node not in self.notices and not worker.lost and self._clock.uptime() < deadline:
            self.serve(0.05)

    def broadcast(self, **message: Any) -> None:
        """Send a message to every member; record the promotions with which the ranks are started."""
        self._send(self.workers, message)
        if "go" in message:
            for node, promotion in sorted(self._promoted.items()):
                if promotion.pod == promotion.replaced:  # which came back before any other
                    continue
                lost_at = self._last_seen.get(node)
                self._record.event(
                    record.PROMOTED,
                    attempt=self._attempt,
                    node=node.number,
                    standby=self._host(promotion.pod),
                    replaces=self._host(promotion.replaced),
                    seconds=None if lost_at is None else self._clock.uptime() - lost_at,
                )
            self._promoted.clear()
            self._last_seen.clear()

    def broadcast_to_gang(self, **message: Any) -> None:
        """Send a message to every node."""
        self._send(self.gang, message)

    def send_to(self, node: int, **message: Any) -> bool:
        """Send a message of this attempt to a node, from any thread; whether that is connected."""
        worker = self.workers.get(_node(node))
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
        """Forget an agent. With one that gave up before its welcome arrived nothing is lost, and it connects again."""
        self._unconfirmed.discard(node)
        self._prepared.discard(node)
        self.hardware.pop(node, None)
        del self.workers[node], self.machines[node]

    def _lose(self, member: Member, reason: str = CONNECTION_LOST) -> None:
        """Forget a worker, or a pod that stood by."""
        self.workers[member].close()
        if member in self._prepared:
            self._record.event(record.LEFT, attempt=self._attempt, **self._named(member), reason=reason)
        self._forget(member)

    def _named(self, member: Member) -> dict[str, str]:
        """A worker, or the pod of a member that stands by, as events name it."""
        if member.role == STANDBY:
            return {"standby": self._host(self._assignment.pods[member])}
        return {"member": member.text}

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take a message of an agent into account; all but a notice are of an attempt."""
        member = next((member for member, worker in self.workers.items() if worker is connection), None)
        if member is None:
            return  # it has been lost meanwhile, or a newer pod has taken over
        self._unconfirmed.discard(member)
        if member.role == NODE:
            self._handle_node(member, message)
        else:
            self._handle_other(member, message)

    def _handle_other(self, member: Member, message: dict[str, Any]) -> None:
        """Take a message of a worker, or of a pod that stands by, into account."""
        if "notice" in message:
            self._lose(member, str(message["notice"]))
        elif message.get("attempt") != self._attempt:
            return  # of one before
        elif "ready" in message:
            self._prepared.add(member)
            machine = self.machines[member]
            self._record.event(record.JOINED, attempt=self._attempt, **self._named(member), machine=machine)
        elif member.role == STANDBY:
            if "ended" in message:
                self._prepared.discard(member)
                self._print("%s cannot stand by: %s" % (self._named(member)["standby"], message.get("reason")))
        elif "oom_killed" in message:
            text = "%s: the kernel killed a process for lack of memory: raise %s.memory"
            self._print(text % (member, self._roles[member.role]["table"]))
        elif message.get("ended") == protocol.NOT_RETRYABLE:
            self.ended[member] = (protocol.NOT_RETRYABLE, str(message.get("reason")))
        elif "ended" in message:
            self._print("%s tries again: %s" % (member, message.get("reason")))

    def _print(self, text: str) -> None:
        self._record.line(self._attempt, COORDINATOR, Line(None, "e", text))

    def _handle_node(self, node: Member, message: dict[str, Any]) -> None:
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
            member = self._assignment.of(pod)
            self.workers[member] = connection
            self._welcome(member, version=MESSAGE_VERSION)  # before any heartbeat
            self._unconfirmed.add(member)
            self.machines[member] = {**(greeting.get("machine") or {}), "member": member.text}

    def _refusal(self, pod: Member, restart_count: int) -> str | None:
        """Why an authenticated pod is not welcome, or None."""
        if pod.role not in self._roles:
            if self._restart_count is not None and restart_count != self._restart_count:
                return "restart count %s is not %d" % (restart_count, self._restart_count)
            if pod == COORDINATOR or pod.number >= self._counts.get(pod.role, 0):
                return "%s is not expected" % (pod,)
        # The pods of a name may overlap: a newer one takes over.
        if restart_count < self._restart_counts.get(pod, 0):
            return "a newer pod of %s has joined" % (pod,)
        self._restart_counts[pod] = restart_count
        member = self._assignment.of(pod)
        if member not in self.workers:
            return None
        if member.role != NODE:
            self._lose(member)
            return None
        if self._restart_count is not None:
            return "%s is not expected" % (pod,)
        # Its agent, or that of its next pod, has no other connection: the attempt ends as soon as this one is lost.
        self.workers[member].close()
        return "the attempt of the pod before has not ended"


def _node(number: int) -> Member:
    return Member(NODE, number)


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
