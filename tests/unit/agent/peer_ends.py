"""A coordinator that a test serves, with the other ends of its connections."""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotmpi.agent.clock import CLOCK
from spotmpi.agent.connection import Connection, Identity
from spotmpi.agent.context import AgentContext, Mounts
from spotmpi.agent.peers import SILENCE, Channel, Coordinator
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.tcp import join
from spotmpi.core.certificates import run_certificates, write_certificates

RUN = "plain-1"
ATTEMPT = 7
LIMIT = 60.0  # seconds for anything, on a busy machine


@functools.cache
def certificates(authority: str) -> Mapping[str, str]:
    """The TLS files of an authority, made once for all tests."""
    return run_certificates(authority)


def new_identity(run: str = RUN, authority: str = RUN, files: Mapping[str, str] | None = None) -> Identity:
    """The membership of *run* for one who has the certificate of *authority*, or other TLS *files*."""
    with tempfile.TemporaryDirectory() as folder:
        texts = files or certificates(authority)
        made = Identity(run, str(write_certificates(Path(folder), dict(texts))))
        assert made.accepting and made.connecting  # read while the files are there
        return made


identity = functools.cache(new_identity)  # for tests that change none of its settings


def sockets() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that buffer as little as the kernel lets them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.socket()
        for each in (listener, near):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        near.connect(listener.getsockname())
        return near, listener.accept()[0]


class Pair:
    """Both ends of a connection, of a worker and of node 0."""

    def __init__(self, own: Any, other: Any) -> None:
        near, far = sockets()
        self.worker, self.node_0 = Connection(near, own.connecting), Connection(far, other.accepting)

    def shake_hands(self) -> bool:
        """Whether each end authenticates the other."""
        ends = (self.worker, self.node_0)
        deadline = time.monotonic() + LIMIT
        while not all(end.authenticated or end.closed for end in ends) and time.monotonic() < deadline:
            for end in ends:
                assert end.receive() == []
        for end in ends:  # TLS 1.3 lets a client finish before its certificate is refused
            assert end.receive() == []
        for end in ends:
            end.admit(SILENCE)
        return all(end.authenticated and not end.closed for end in ends)

    def close(self) -> None:
        self.worker.close()
        self.node_0.close()


class ServedCoordinator:
    """A coordinator for three nodes that is served while a thread runs the other end."""

    def __init__(self, restart_count: int | None = 4) -> None:
        plan: Any = {"hosts": ["a", "b", "c"], "roles": [], "replaces_nodes": restart_count is None}
        context = AgentContext(plan, COORDINATOR, restart_count or 0, None, Mounts("", "", "", "", ""), CLOCK)
        record: Any = None  # of workers, of which there are none
        self.coordinator = Coordinator(Channel(identity(), port=0), context, ATTEMPT, record)
        self.port = int(self.coordinator._listener.getsockname()[1])

    def serve_during(self, act: Callable[[], Any]) -> Any:
        """The result of *act*, run by a thread while the coordinator is served."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(act()))
        thread.start()
        while thread.is_alive():
            self.coordinator.serve(0.01)
        self.coordinator.serve(0.01)
        return results[0]

    def join(self, node: object = 1, restart_count: object = 4, run: str = RUN, authority: str = RUN) -> Any:
        member = Member(NODE, node).text if isinstance(node, int) else node
        greeting: Any = {"member": member, "restart_count": restart_count}
        return self.serve_during(lambda: join("127.0.0.1", Channel(identity(run, authority), self.port), greeting))

    def serve_until_ready(self, node: int, connection: Connection) -> bool:
        """Whether the coordinator takes the connection of a worker that says so for ready."""
        connection.send(ready=1, attempt=ATTEMPT)
        deadline = time.monotonic() + LIMIT
        while Member(NODE, node) not in self.coordinator.ready and time.monotonic() < deadline:
            self.coordinator.serve(0.5)
        return Member(NODE, node) in self.coordinator.ready

    def authenticated(self) -> Connection:
        """A client that has the run's key and has not greeted yet."""

        def shake_hands() -> Connection:
            sock = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)
            connection = Connection(sock, identity().connecting)
            while not (connection.authenticated or connection.closed):
                assert connection.receive() == []
                time.sleep(0.001)
            return connection

        opened: Connection = self.serve_during(shake_hands)
        return opened

    def raw(self, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
        """What the coordinator answers to a client's bytes, over TLS with *context*, until it closes the connection."""

        def exchange() -> bytes:
            answer = b""
            with (
                contextlib.suppress(OSError),  # closed while there was still something to read
                socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT) as plain,
                context.wrap_socket(plain) if context else plain as sock,
            ):
                sock.sendall(data)
                while part := sock.recv(1000):
                    answer += part
            return answer

        return bytes(self.serve_during(exchange))


def wait_for_message(connection: Connection) -> list[dict[str, Any]]:
    """The first messages but heartbeats that arrive within `LIMIT`; none if the connection is closed before."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and not connection.closed:
        messages = [message for message in connection.receive() if "beat" not in message]
        if messages:
            return messages
        time.sleep(0.005)
    return []
