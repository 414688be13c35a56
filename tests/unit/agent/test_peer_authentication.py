"""Agents prove to each other that they are of one run; other clients cannot do any harm: real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import connection, peers
from spotmpi.agent.connection import Connection, Session
from spotmpi.agent.peers import join
from tests.unit.agent.peer_ends import TOKEN, ServedCoordinator, wait_for_message


class Impostor:
    """Listens in place of node 0 and sends *lines* after its challenge."""

    def __init__(self, *lines: bytes, token: str = "") -> None:
        self._lines = lines
        self._token = token

    def join(self) -> Any:
        """The result of a worker that joins it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._answer, args=(listener,))
            thread.start()
            joined = join("127.0.0.1", TOKEN, {"node": 1, "generation": 4}, listener.getsockname()[1])
            thread.join()
        return joined

    def _answer(self, listener: socket.socket) -> None:
        with listener.accept()[0] as sock:
            sock.sendall(b'{"challenge": "node 0"}\n')
            challenge = json.loads(sock.recv(1000).partition(b" ")[2])["challenge"]
            session = Session(self._token, connection.NODE_0, ("node 0", challenge), 1, 4)
            data = b"".join((session.sign(line) if self._token else line) + b"\n" for line in self._lines)
            with contextlib.suppress(ConnectionError):  # the worker has closed already
                sock.sendall(data[:-5])
                sock.sendall(data[-5:])
            time.sleep(0.2)


def test_messages_that_come_with_the_welcome_are_not_lost() -> None:
    joined = Impostor(b'{"welcome": 1}', b'{"go": 1}', b'{"beat": 1}', token=TOKEN).join()
    assert not isinstance(joined, str)
    messages: list[dict[str, Any]] = []
    while not joined[0].closed:
        messages += joined[0].receive()
    assert messages == [{"go": 1}, {"beat": 1}]


@pytest.mark.parametrize(
    "impostor",
    [
        Impostor(b'{"welcome": 1}'),
        Impostor(b'{"welcome": 1}', token="another"),
        Impostor(b"0" * 64 + b' {"welcome": 1}'),
        Impostor(b'{"beat": 1}', token=TOKEN),
        Impostor(b"[" * 3000),
    ],
)
def test_an_impostor_of_node_0_without_the_token_is_rejected(impostor: Impostor) -> None:
    assert impostor.join() == "127.0.0.1 is not node 0 of this run"


def test_a_refusal_is_shown_truncated_and_without_control_characters() -> None:
    refusal = json.dumps({"refused": "\x1b]0;title\x07" + "x" * 1000}).encode()
    reason = Impostor(refusal).join()
    assert reason.startswith("127.0.0.1 refuses this node: '\\x1b]0;title\\x07xx") and len(reason) < 300


@pytest.mark.parametrize("line", [b'{"refused": 5}', b"x" * 10_000])
def test_a_malformed_answer_of_node_0_is_rejected(line: bytes) -> None:
    assert Impostor(line).join() in ("127.0.0.1 is not node 0 of this run", "127.0.0.1 does not answer")


class Relay:
    """Forwards and stores the bytes between one worker and the coordinator; tests may add bytes in both directions."""

    def __init__(self, served: ServedCoordinator) -> None:
        self.traffic = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._coordinator_port = served.port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.worker = self._listener.accept()[0]
        self.coordinator = socket.create_connection(("127.0.0.1", self._coordinator_port))
        threading.Thread(target=self._forward, args=(self.worker, self.coordinator), daemon=True).start()
        self._forward(self.coordinator, self.worker)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # until either end closes
            while data := source.recv(1000):
                self.traffic += data
                target.sendall(data)


@pytest.fixture
def relay(served: ServedCoordinator) -> Iterator[tuple[Relay, Connection]]:
    relay = Relay(served)
    joined = served.serve_during(lambda: join("127.0.0.1", TOKEN, {"node": 1, "generation": 4}, relay.port))
    assert not isinstance(joined, str)
    yield relay, joined[0]
    for sock in (relay.worker, relay.coordinator):
        sock.close()


def test_the_token_never_travels(relay: tuple[Relay, Connection]) -> None:
    assert relay[0].traffic.count(b"challenge") == 2
    assert TOKEN.encode() not in relay[0].traffic and b"token" not in relay[0].traffic


@pytest.mark.parametrize("line", [b'{"over": 1}\n', b"0" * 64 + b' {"over": 1}\n', None])
def test_a_relay_can_neither_add_a_message_nor_repeat_one(
    served: ServedCoordinator, relay: tuple[Relay, Connection], line: bytes | None
) -> None:
    middle, worker = relay
    served.coordinator.broadcast(go=1)
    assert wait_for_message(worker) == [{"go": 1}]
    go = next(each for each in middle.traffic.splitlines(keepends=True) if b'"go"' in each)
    middle.worker.sendall(line or go)
    assert wait_for_message(worker) == []
    assert worker.closed

    own = next(each for each in middle.traffic.splitlines(keepends=True) if b'"beat"' in each)
    middle.coordinator.sendall(line or own)
    served.coordinator.serve(1)
    served.coordinator.serve(0.1)
    assert served.coordinator.workers[1].closed or not served.coordinator.workers


def test_a_replayed_greeting_is_not_accepted(served: ServedCoordinator, relay: tuple[Relay, Connection]) -> None:
    greeting = next(line for line in relay[0].traffic.splitlines(keepends=True) if b'"generation"' in line)
    second = served.raw(greeting.replace(b'"node": 1', b'"node": 2'))
    assert json.loads(served.raw(greeting)) == json.loads(second) == {"refused": "not of this run"}


def silent_clients(served: ServedCoordinator, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Open that many connections that send nothing."""

    def connect() -> list[socket.socket]:
        address = ("127.0.0.1", served.port)
        return [socket.create_connection(address, source_address=(source, 0)) for _ in range(count)]

    opened: list[socket.socket] = served.serve_during(connect)
    return opened


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_silent_clients_take_a_limited_number_of_descriptors_and_keep_no_worker_out(served: ServedCoordinator) -> None:
    first, _ = served.join(1)
    before = descriptors()
    silent = silent_clients(served, 3 * peers.MAX_UNAUTHENTICATED)
    served.coordinator.serve(0)
    assert descriptors() - before - len(silent) <= peers.MAX_UNAUTHENTICATED + 3

    second, _ = served.join(2)
    for worker in (first, second):
        worker.send(ready=1)
    served.coordinator.serve(0.5)
    served.coordinator.serve(0.1)
    assert served.coordinator.missing() == [] and served.coordinator.lost() == []
    for sock in silent:
        sock.close()


def test_a_flood_from_one_address_drops_its_own_connections_first(served: ServedCoordinator) -> None:
    """A worker whose agent is still querying its GPUs has connected before the stranger."""
    (early,) = silent_clients(served, 1)
    worker = next(iter(served.coordinator._unauthenticated))
    flood = silent_clients(served, 2 * peers.MAX_UNAUTHENTICATED, "127.0.0.9")
    served.coordinator.serve(0)
    assert not worker.closed and worker in served.coordinator._unauthenticated
    for sock in (early, *flood):
        sock.close()


@pytest.mark.parametrize("data", [b"", b"x"], ids=["silent", "a byte now and then"])
def test_an_unauthenticated_client_is_dropped(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    (client,) = silent_clients(served, 1)
    assert served.coordinator._unauthenticated
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 0.1)
    deadline = time.monotonic() + 5
    while served.coordinator._unauthenticated and time.monotonic() < deadline:
        client.send(data)
        served.coordinator.serve(0.02)
    assert not served.coordinator._unauthenticated
    client.close()


def test_a_node_0_without_a_free_descriptor_accepts_workers_once_it_has_one(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_ACCEPT_PAUSE", 0.05)
    first, _ = served.join(1)
    waiting = socket.create_connection(("127.0.0.1", served.port))
    with no_free_descriptor():
        for _ in range(3):
            served.coordinator.serve(0.01)
        first.send(ready=1)
        served.coordinator.serve(0.5)
    assert served.coordinator.ready == {1} and served.coordinator.lost() == []
    waiting.close()
    assert served.join(2)[1] == 7


def test_a_node_0_without_a_free_descriptor_drops_the_oldest_unauthenticated_client(served: ServedCoordinator) -> None:
    silent = silent_clients(served, 2)
    oldest = next(iter(served.coordinator._unauthenticated))
    with socket.create_connection(("127.0.0.1", served.port)) as newest, no_free_descriptor():
        served.coordinator.serve(0.5)
        served.coordinator.serve(0.5)
        assert oldest.closed and json.loads(newest.recv(1000))["challenge"]
    for sock in silent:
        sock.close()


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Inside, this process can open no descriptor: the soft limit is the lowest free one, so the kernel says EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
