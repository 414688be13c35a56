"""A hub that a test serves, with the ends that talk to it."""

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


class Led:
    """A hub for three nodes that is served by a thread while the other end talks."""

    def __init__(self) -> None:
        self.port = free_port()
        self.hub = Coordinator(TOKEN, 3, 4, {"welcome": 7}, self.port)

    def serving(self, act: Callable[[], Any]) -> Any:
        """Give what *act* gives, done beside a served hub."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(act()))
        thread.start()
        while thread.is_alive():
            self.hub.serve(0.01)
        self.hub.serve(0.01)
        return found[0]

    def join(self, node: object = 1, generation: object = 4, token: str = TOKEN) -> Any:
        greeting = {"node": node, "generation": generation}
        return self.serving(lambda: join("127.0.0.1", token, greeting, self.port))

    def raw(self, data: bytes) -> bytes:
        """Give what the hub answers to bytes of a stranger until it closes the connection."""

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
                sock.recv(1000)  # the challenge
                sock.sendall(data)
                try:
                    return sock.recv(1000)
                except ConnectionResetError:
                    return b""  # closed while there was still something to read

        return bytes(self.serving(talk))


def wait_for_message(connection: Connection) -> list[dict[str, Any]]:
    """Give the first messages that arrive within 5 s."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = connection.receive()
        if found:
            return found
        time.sleep(0.005)
    return []
