"""How the agents of a run know of each other: every worker keeps one connection to node 0.

Messages are JSON objects, one a line. A connection that closes, or is silent for too long, is a lost host. All but the
first and a refusal carry proof of the run's token (see `authentication`).

    node 0 -> worker   {"challenge": random}
    worker -> node 0   {"challenge": random, "node": 1, "generation": 0, "machine": where it is}
    node 0 -> worker   {"welcome": attempt, "since": time} or {"refused": reason}

    worker -> node 0   {"ready": true, "hardware": {...}} its sshd answers, and what it runs on
                       {"notice": reason}                 its machine is about to go away
                       {"oom_killed": 1}                     something of its pod was killed for want of memory
                       {"ended": code, "reason": ...}     its own launcher has ended (launchers with one per node)
                       {"beat": 1}                        at once after the welcome, then now and then
    node 0 -> worker   {"go": port}                       start your launcher
                       {"over": cause}                    end: the attempt is over
                       {"beat": 1}
"""

from __future__ import annotations

import errno
import json
import resource
import selectors
import socket
import time
from typing import Any

from . import authentication
from .authentication import Session
from .connection import Connection, Heartbeat, parse

PORT = 2223
# Seconds for a connection. Network policies drop the packets of a pod whose address they do not know yet, and the
# kernel sends the first one again only after a second.
CONNECTING = 0.5
ANSWER = 10.0  # seconds that node 0 may take to answer: it may still be looking at its GPUs
STRANGERS = 64  # connections, beside one for each node, that node 0 keeps before they have proved the token
_PAUSE = 1.0  # seconds without accepting anybody after descriptors have run out
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Coordinator:
    """Node 0's end: knows every worker of this attempt.

    Workers that speak for another run or another generation (a pod of before the restart) are refused. Whoever proves
    nothing costs one of a limited number of descriptors, and loses it to those who come later, or after
    `HEARTBEAT_TIMEOUT`.
    """

    def __init__(self, token: str, nodes: int, generation: int, welcome: dict[str, Any], port: int = PORT) -> None:
        self.workers: dict[int, Connection] = {}
        self.machines: dict[int, dict[str, Any]] = {}
        self.ready: set[int] = set()
        self.notices: dict[int, str] = {}
        self.oom_killed: set[int] = set()
        self.ended: dict[int, tuple[int, str]] = {}
        self.hardware: dict[int, dict[str, Any]] = {}
        self._token = token
        self._nodes = nodes
        self._generation = generation
        self._welcome = welcome
        self._strangers: dict[Connection, str] = {}  # not authenticated, oldest first, with their challenges
        self._limit = min(STRANGERS + nodes, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, 1))
        self._accepting_from = 0.0  # by time.monotonic
        self._unheard: set[int] = set()  # welcomed, but without a word since
        self._listener = socket.create_server(("", port), backlog=1024, reuse_port=False)
        self._listener.setblocking(False)
        self._looked = time.monotonic()
        self._pulse = Heartbeat(lambda: list(self.workers.values()), lambda: self._looked)

    def missing(self) -> list[int]:
        """The nodes that are not ready yet."""
        return [node for node in range(1, self._nodes) if node not in self.ready]

    def lost(self) -> list[int]:
        """The nodes that were here and are gone without having ended."""
        return [node for node, worker in self.workers.items() if worker.lost and node not in self.ended]

    def serve(self, timeout: float) -> None:
        """Take what has arrived, waiting at most *timeout* seconds for something."""
        with selectors.PollSelector() as selector:  # which needs no descriptor, as there may be none left
            if time.monotonic() >= self._accepting_from:
                selector.register(self._listener, selectors.EVENT_READ, None)
            for connection in [*self._strangers, *self.workers.values()]:
                if not connection.closed:
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
            for key, _ in selector.select(timeout):
                if key.data is None:
                    self._accept()
                elif key.data in self._strangers:
                    self._greet(key.data)
                else:
                    for message in key.data.receive():
                        self._take(key.data, message)
        self._looked = time.monotonic()
        for connection in [*self._strangers, *self.workers.values()]:
            connection.looked = self._looked
        for connection in [stranger for stranger in self._strangers if stranger.lost]:
            self._drop(connection)
        for node in [node for node in self._unheard if self.workers[node].lost]:
            self._forget(node)

    def tell(self, **message: Any) -> None:
        """Send a message to every worker."""
        for worker in self.workers.values():
            if not worker.closed:
                worker.send(**message)

    def close(self) -> None:
        """Close all connections."""
        self._pulse.end()
        for connection in [*self._strangers, *self.workers.values()]:
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        """Accept those who wait, as far as there are descriptors: the oldest strangers make room for new ones."""
        for _ in range(self._limit):
            try:
                connection = Connection(self._listener.accept()[0])
            except BlockingIOError:
                return
            except OSError as error:  # else whoever came has gone already
                if error.errno in _EXHAUSTED:
                    self._make_room()
                return
            if len(self._strangers) >= self._limit:
                self._drop(next(iter(self._strangers)))
            self._strangers[connection] = authentication.challenge()
            connection.send(challenge=self._strangers[connection])

    def _make_room(self) -> None:
        if self._strangers:
            self._drop(next(iter(self._strangers)))
        else:
            self._accepting_from = time.monotonic() + _PAUSE

    def _drop(self, stranger: Connection) -> None:
        stranger.close()
        del self._strangers[stranger]

    def _forget(self, node: int) -> None:
        """A worker that got tired of waiting for its welcome: nothing is lost with it, and it comes again."""
        self._unheard.remove(node)
        del self.workers[node], self.machines[node]

    def _take(self, connection: Connection, message: dict[str, Any]) -> None:
        node = next(node for node, worker in self.workers.items() if worker is connection)
        self._unheard.discard(node)
        if "ready" in message:
            self.ready.add(node)
            self.hardware[node] = message.get("hardware") or {}
        elif "notice" in message:
            self.notices[node] = str(message["notice"])
        elif "oom_killed" in message:
            self.oom_killed.add(node)
        elif "ended" in message:
            self.ended[node] = (int(message["ended"]), str(message.get("reason")))

    def _greet(self, connection: Connection) -> None:
        """Make a worker of a stranger who proves that it is one; refuse it otherwise."""
        line = connection.first_line()
        if line is None:
            return
        message = parse(line.partition(b" ")[2]) or {}
        session = self._session(self._strangers[connection], message)
        node: Any = message.get("node")
        generation = message.get("generation")
        if session is None or session.verify(line) is None:
            refused = "not of this run"
        elif generation != self._generation:
            refused = "generation %s is not %d" % (generation, self._generation)
        elif not 0 < node < self._nodes or node in self.workers:
            refused = "node %d is not expected" % node
        else:
            del self._strangers[connection]
            connection.authenticate(session)
            self.workers[node] = connection
            self._unheard.add(node)
            self.machines[node] = message.get("machine") or {"node": node}
            connection.send(**self._welcome)
            return
        connection.send(refused=refused)
        self._drop(connection)

    def _session(self, challenge: str, message: dict[str, Any]) -> Session | None:
        """The session that a worker's greeting claims; None where the greeting has not the form of one."""
        answer, node, generation = (message.get(key) for key in ("challenge", "node", "generation"))
        if not isinstance(answer, str) or type(node) is not int or type(generation) is not int:
            return None
        return Session(self._token, authentication.NODE_0, (challenge, answer), node, generation)


def join(host: str, token: str, hello: dict[str, Any], port: int = PORT) -> tuple[Connection, dict[str, Any]] | str:
    """Connect to node 0 and be welcomed: the connection and the welcome, or in words why not yet.

    *hello* tells the node index, the generation and the machine of this worker.
    """
    try:
        connection = Connection(socket.create_connection((host, port), timeout=CONNECTING))
    except OSError as error:
        return "%s: %s" % (host, error)
    deadline = time.monotonic() + ANSWER
    session = _answer(connection, token, hello, _awaited_line(connection, deadline))
    line = _awaited_line(connection, deadline) if session else None
    text = session.verify(line) if session and line else None
    welcome = parse(text) if text else None
    if session and welcome and "welcome" in welcome:
        connection.authenticate(session)
        connection.send(beat=1)
        Heartbeat(lambda: [connection], lambda: connection.looked)
        return connection, welcome
    connection.close()
    refused = (parse(line) or {}).get("refused") if line else None
    if isinstance(refused, str):
        return "%s refuses this node: %s" % (host, ascii(refused[:200]))
    return "%s does not answer" % host if line is None else "%s is not node 0 of this run" % host


def _answer(connection: Connection, token: str, hello: dict[str, Any], line: bytes | None) -> Session | None:
    """Answer the challenge in *line*, the first of the other end; None where it holds none."""
    theirs = (parse(line) or {}).get("challenge") if line else None
    if not isinstance(theirs, str):
        return None
    own = authentication.challenge()
    session = Session(token, authentication.WORKER, (theirs, own), hello["node"], hello["generation"])
    connection.send_line(session.sign(json.dumps({"challenge": own, **hello}).encode()))
    return session


def _awaited_line(connection: Connection, deadline: float) -> bytes | None:
    """The first line that comes until *deadline*, by time.monotonic."""
    while time.monotonic() < deadline and not connection.closed:
        line = connection.first_line()
        if line is not None:
            return line
        if not connection.closed:
            with selectors.PollSelector() as selector:
                selector.register(connection.socket, selectors.EVENT_READ)
                selector.select(0.2)
    return None
