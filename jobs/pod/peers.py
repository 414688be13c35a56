"""How the agents of a run know of each other: every worker keeps one connection to node 0.

Messages are JSON objects, one a line. A connection that closes, or is silent for too long, is a lost host.

    worker -> node 0   {"hello": token, "node": 1, "generation": 0, "host": name, "machine": where it is}
                       {"ready": true, "hardware": {...}} its sshd answers, and what it runs on
                       {"notice": reason}                 its machine is about to go away
                       {"starved": 1}                     something of its pod was killed for want of memory
                       {"ended": code, "reason": ...}     its own launcher has ended (launchers with one per node)
                       {"beat": 1}                        at once after the welcome, then now and then
    node 0 -> worker   {"welcome": attempt, "since": time} or {"refused": reason}
                       {"go": port}                       start your launcher
                       {"over": cause}                    end: the attempt is over
                       {"beat": 1}
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

PORT = 2223
BEAT = 1.0  # seconds between signs of life
SILENCE = 7.0  # seconds after which a silent peer counts as lost
ANSWER = 10.0  # seconds that node 0 may take to answer: it may still be looking at its GPUs
STALL = 60.0  # seconds for which an agent may wait for a file system, or for whoever takes its output, and still live
_LONGEST = 1 << 16


class Connection:
    """One end of a connection between two agents; never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.address = _address(sock)  # of the other end
        self.heard = self.looked = time.monotonic()
        self.closed = False
        self._speaking = threading.Lock()
        self._spoke = 0.0
        self._rest = b""
        self._kept: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        """Send one message; a connection that cannot take it is closed."""
        with self._speaking:
            try:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
                self._spoke = time.monotonic()
            except OSError:
                self.close()

    def beat(self) -> None:
        """Give a sign of life when it is time for one."""
        if not self.closed and time.monotonic() > self._spoke + BEAT:
            self.send(beat=1)

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; closes the connection at its end or when it is not one of ours."""
        kept, self._kept = self._kept, []
        return kept + self._received()

    def keep(self, messages: list[dict[str, Any]]) -> None:
        """Give *messages* back, to be received again."""
        self._kept += messages

    def _received(self) -> list[dict[str, Any]]:
        self.looked = time.monotonic()
        try:
            data = self.socket.recv(_LONGEST)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *whole, self._rest = (self._rest + data).split(b"\n")
        messages = [_message(line) for line in whole]
        if not data or len(self._rest) > _LONGEST or None in messages:
            self.close()
            return []
        self.heard = self.looked
        return [message for message in messages if message is not None]

    @property
    def lost(self) -> bool:
        """Whether the other end was gone, or silent for too long, when we looked last."""
        return self.closed or self.looked > self.heard + SILENCE

    def close(self) -> None:
        """Close it; harmless when done twice."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.close()


class Pulse:
    """Gives signs of life by a thread of its own, for this process may have to wait for a disk meanwhile.

    Only as long as *looked*, a time by `time.monotonic`, is not too long ago: who stalls for good is as good as gone.
    """

    def __init__(self, connections: Callable[[], Iterable[Connection]], looked: Callable[[], float]) -> None:
        self._connections = connections
        self._looked = looked
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT / 2):
            for connection in self._connections() if time.monotonic() < self._looked() + STALL else ():
                connection.beat()

    def end(self) -> None:
        """No more signs of life."""
        self._over.set()


def _address(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""  # it has gone already


def _message(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where no agent would say it."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


class Hub:
    """Node 0's end: knows every worker of this attempt.

    Workers that speak for another run or another generation (a pod of before the restart) are refused.
    """

    def __init__(self, token: str, nodes: int, generation: int, welcome: dict[str, Any], port: int = PORT) -> None:
        self.workers: dict[int, Connection] = {}
        self.machines: dict[int, dict[str, Any]] = {}
        self.ready: set[int] = set()
        self.notices: dict[int, str] = {}
        self.starved: set[int] = set()
        self.ended: dict[int, tuple[int, str]] = {}
        self.hardware: dict[int, dict[str, Any]] = {}
        self._token = token
        self._nodes = nodes
        self._generation = generation
        self._welcome = welcome
        self._strangers: list[Connection] = []
        self._unheard: set[int] = set()  # welcomed, but without a word since
        self._listener = socket.create_server(("", port), backlog=1024, reuse_port=False)
        self._listener.setblocking(False)
        self._looked = time.monotonic()
        self._pulse = Pulse(lambda: list(self.workers.values()), lambda: self._looked)

    def missing(self) -> list[int]:
        """The nodes that are not ready yet."""
        return [node for node in range(1, self._nodes) if node not in self.ready]

    def lost(self) -> list[int]:
        """The nodes that were here and are gone without having ended."""
        return [node for node, worker in self.workers.items() if worker.lost and node not in self.ended]

    def serve(self, timeout: float) -> None:
        """Take what has arrived, waiting at most *timeout* seconds for something."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, None)
            for connection in [*self._strangers, *self.workers.values()]:
                if not connection.closed:
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
            for key, _ in selector.select(timeout):
                if key.data is None:
                    self._strangers.append(Connection(self._listener.accept()[0]))
                else:
                    for message in key.data.receive():
                        self._take(key.data, message)
        self._looked = time.monotonic()
        for connection in [*self._strangers, *self.workers.values()]:
            connection.looked = self._looked
        self._strangers = [stranger for stranger in self._strangers if not stranger.lost]
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

    def _forget(self, node: int) -> None:
        """A worker that got tired of waiting for its welcome: nothing is lost with it, and it comes again."""
        self._unheard.remove(node)
        del self.workers[node], self.machines[node]

    def _take(self, connection: Connection, message: dict[str, Any]) -> None:
        node = next((node for node, worker in self.workers.items() if worker is connection), None)
        if node is None:
            self._greet(connection, message)
            return
        self._unheard.discard(node)
        if "ready" in message:
            self.ready.add(node)
            self.hardware[node] = message.get("hardware") or {}
        elif "notice" in message:
            self.notices[node] = str(message["notice"])
        elif "starved" in message:
            self.starved.add(node)
        elif "ended" in message:
            self.ended[node] = (int(message["ended"]), str(message.get("reason")))

    def _greet(self, connection: Connection, message: dict[str, Any]) -> None:
        node = message.get("node")
        if not hmac.compare_digest(json.dumps(message.get("hello")), json.dumps(self._token)):
            connection.send(refused="not of this run")
        elif message.get("generation") != self._generation:
            connection.send(refused="generation %s is not %d" % (message.get("generation"), self._generation))
        elif type(node) is not int or not 0 < node < self._nodes or node in self.workers:
            connection.send(refused="node %r is not expected" % node)
        else:
            self._strangers.remove(connection)
            self.workers[node] = connection
            self._unheard.add(node)
            self.machines[node] = message.get("machine") or {"node": node}
            connection.send(**self._welcome)
            return
        connection.close()


def join(host: str, hello: dict[str, Any], port: int = PORT) -> tuple[Connection, dict[str, Any]] | str:
    """Connect to node 0 and be welcomed: the connection and the welcome, or in words why not yet."""
    try:
        sock = socket.create_connection((host, port), timeout=2)
    except OSError as error:
        return "%s: %s" % (host, error)
    connection = Connection(sock)
    connection.send(**hello)
    deadline = time.monotonic() + ANSWER
    while time.monotonic() < deadline and not connection.closed:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, selectors.EVENT_READ)
            ready = selector.select(0.2)
        messages = connection.receive() if ready else []
        if messages and "welcome" in messages[0]:
            connection.keep(messages[1:])
            connection.send(beat=1)
            Pulse(lambda: [connection], lambda: connection.looked)
            return connection, messages[0]
        if messages and "refused" in messages[0]:
            connection.close()
            return str(messages[0]["refused"])
    connection.close()
    return "%s does not answer" % host
