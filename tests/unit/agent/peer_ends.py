"""A coordinator that a test serves, with the other ends of its connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from spotmpi.agent.connection import Connection
from spotmpi.agent.peers import Coordinator, join

TOKEN = "token-\u00e9"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServedCoordinator:
    """A coordinator for three nodes that is served while a thread runs the other end."""

    def __init__(self) -> None:
        self.port = free_port()
        self.coordinator = Coordinator(TOKEN, 3, 4, 7, self.port)

    def serve_during(self, act: Callable[[], Any]) -> Any:
        """The result of *act*, run by a thread while the coordinator is served."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(act()))
        thread.start()
        while thread.is_alive():
            self.coordinator.serve(0.01)
        self.coordinator.serve(0.01)
        return results[0]

    def join(self, node: object = 1, generation: object = 4, token: str = TOKEN) -> Any:
        greeting: Any = {"node": node, "generation": generation}
        return self.serve_during(lambda: join("127.0.0.1", token, greeting, self.port))

    def serve_until_ready(self, node: int, connection: Connection) -> bool:
        """Whether the coordinator takes the connection of a worker that says so for ready."""
        connection.send(ready=1)
        self.coordinator.serve(0.5)
        return node in self.coordinator.ready

    def raw(self, data: bytes) -> bytes:
        """What the coordinator answers to bytes of an unauthenticated client until it closes the connection."""

        def exchange() -> bytes:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
                sock.recv(1000)  # the challenge
                sock.sendall(data)
                try:
                    return sock.recv(1000)
                except ConnectionResetError:
                    return b""  # closed while there was still something to read

        return bytes(self.serve_during(exchange))


def wait_for_message(connection: Connection) -> list[dict[str, Any]]:
    """The first messages that arrive within 5 s; none if the connection is closed before."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not connection.closed:
        messages = connection.receive()
        if messages:
            return messages
        time.sleep(0.005)
    return []
