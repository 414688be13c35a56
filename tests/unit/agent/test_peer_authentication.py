"""Agents prove to each other that they are of one run; other clients cannot do any harm: real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import connection, peers
from spotmpi.agent.connection import Connection
from spotmpi.agent.peers import Channel
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.schema import Greeting
from spotmpi.agent.tcp import join
from tests.unit.agent.peer_ends import ATTEMPT, LIMIT, ServedCoordinator, identity, new_identity, wait_for_message

NODE_1 = Member(NODE, 1)
GREETING: Greeting = {"member": "node/1", "restart_count": 4, "machine": {"type": "g5.xlarge"}}
WELCOME = b'{"welcome": 1, "member": "node/1"}\n'
HANDSHAKE = 22  # the type of a record of TLS (RFC 8446, 5.1)


class Impostor:
    """Listens in place of node 0, with the TLS settings of *context* or in plain text, and sends *data*."""

    def __init__(self, data: bytes, context: ssl.SSLContext | None = None) -> None:
        self._data = data
        self._context = context

    def join(self) -> Any:
        """The result of a worker that joins it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
            return join("127.0.0.1", Channel(identity(), listener.getsockname()[1]), GREETING)

    def _answer(self, listener: socket.socket) -> None:
        sock = listener.accept()[0]
        with contextlib.suppress(OSError):  # the worker closes as soon as it knows
            sock = self._context.wrap_socket(sock, server_side=True) if self._context else sock
            received = sock.recv(
                1 << 16
            )  # a whole ClientHello, which OpenSSL 3.5 makes longer by a key share of ML-KEM
            data = self._data or received
            sock.sendall(data[:-5])
            sock.sendall(data[-5:])
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):  # until the worker closes: a socket that is closed unread loses what it has sent
                pass
        sock.close()


def of_another_protocol() -> ssl.SSLContext:
    """Listens with the run's certificate, but not for agents, as the scheduler of a pool does."""
    context = new_identity().accepting
    context.set_alpn_protocols(["another"])
    return context


def test_messages_that_come_with_the_welcome_are_not_lost() -> None:
    joined = Impostor(WELCOME + b'{"go": 1}\n{"beat": 1}\n', identity().accepting).join()
    assert not isinstance(joined, str)
    messages: list[dict[str, Any]] = []
    while not joined[0].closed:
        messages += joined[0].receive()
    assert messages == [{"go": 1}, {"beat": 1}]


@pytest.mark.parametrize(
    ("impostor", "reason"),
    [
        (Impostor(WELCOME), ": wrong version number"),
        (Impostor(b""), ": unexpected message"),  # what the worker itself has sent
        (Impostor(WELCOME, identity(authority="another").accepting), ": self-signed certificate in certificate chain"),
        (Impostor(WELCOME, of_another_protocol()), ": it speaks another protocol"),
        (Impostor(b'{"beat": 1}\n', identity().accepting), ""),
        (Impostor(b'{"refused": 5}\n', identity().accepting), ""),
    ],
    ids=["plain text", "echo", "another key", "another protocol", "no welcome", "malformed refusal"],
)
def test_an_impostor_of_node_0_is_rejected_with_the_reason(impostor: Impostor, reason: str) -> None:
    assert impostor.join() == f"127.0.0.1 is not node 0 of this run{reason}"


def test_a_refusal_is_shown_truncated_and_without_control_characters() -> None:
    refusal = json.dumps({"refused": "\x1b]0;title\x07" + "x" * 1000}).encode() + b"\n"
    reason = Impostor(refusal, identity().accepting).join()
    assert reason.startswith("127.0.0.1 refuses this node: '\\x1b]0;title\\x07xx") and len(reason) < 300


@pytest.mark.parametrize("data", [b"x" * 100_000, b"[" * 3000 + b"\n"], ids=["endless", "no message"])
def test_an_answer_of_node_0_that_is_no_message_ends_the_connection(data: bytes) -> None:
    assert Impostor(data, identity().accepting).join() == "127.0.0.1 does not answer"


class Relay:
    """Forwards the bytes between one worker and the coordinator, and keeps the records of TLS.

    While *held*, records of one direction are kept only.
    """

    def __init__(self, port: int) -> None:
        self.to_node_0: list[bytes] = []
        self.to_worker: list[bytes] = []
        self.held = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._coordinator_port = port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.worker = self._listener.accept()[0]
        self.coordinator = socket.create_connection(("127.0.0.1", self._coordinator_port))
        up = (self.worker, self.coordinator, self.to_node_0)
        threading.Thread(target=self._forward, args=up, daemon=True).start()
        self._forward(self.coordinator, self.worker, self.to_worker)

    def _forward(self, source: socket.socket, target: socket.socket, records: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # until either end closes
            while header := _read(source, 5):
                record = header + _read(source, int.from_bytes(header[3:], "big"))
                records.append(record)
                if not self.held:
                    target.sendall(record)

    def close(self) -> None:
        for sock in (self.worker, self.coordinator, self._listener):
            sock.close()


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2], ids=["TLS 1.3", "TLS 1.2"])
def relay(served: ServedCoordinator, request: pytest.FixtureRequest) -> Iterator[tuple[Relay, Connection]]:
    own = new_identity()
    own.connecting.maximum_version = request.param
    relay = Relay(served.port)
    joined = served.serve_during(lambda: join("127.0.0.1", Channel(own, relay.port), GREETING))
    assert not isinstance(joined, str), joined
    yield relay, joined[0]
    relay.close()


def test_nothing_that_agents_tell_each_other_can_be_read_on_the_way(
    served: ServedCoordinator, relay: tuple[Relay, Connection]
) -> None:
    middle, worker = relay
    served.coordinator.broadcast(go=1)
    assert wait_for_message(worker) == [{"go": 1}]
    traffic = b"".join(middle.to_node_0 + middle.to_worker)
    assert len(traffic) > 1000
    for secret in (b"g5.xlarge", b"welcome", b"restart_count", b'"go"'):
        assert secret not in traffic


TAMPER: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "plain text": lambda records: [b'{"over": 1}\n'],
    "changed": lambda records: [records[0][:-1] + bytes([records[0][-1] ^ 1])],
    "repeated": lambda records: [records[0], records[0]],
    "reordered": lambda records: [records[1], records[0]],
    "left out": lambda records: [records[1]],
}


@pytest.mark.parametrize("tamper", TAMPER.values(), ids=TAMPER)
@pytest.mark.parametrize("to_worker", [True, False], ids=["to the worker", "to node 0"])
def test_whoever_relays_messages_can_neither_forge_repeat_nor_reorder_them(
    served: ServedCoordinator,
    relay: tuple[Relay, Connection],
    to_worker: bool,
    tamper: Callable[[list[bytes]], list[bytes]],
) -> None:
    middle, worker = relay
    assert served.serve_until_ready(1, worker)
    node_0 = served.coordinator.workers[NODE_1]
    served.coordinator._heartbeat.stop()
    middle.held = True
    sender, receiver = (node_0, worker) if to_worker else (worker, node_0)
    records, target = (middle.to_worker, middle.worker) if to_worker else (middle.to_node_0, middle.coordinator)
    before = len(records)
    for message in ({"notice": "first"}, {"notice": "second"}):
        sender.send(**message)
    deadline = time.monotonic() + LIMIT
    while len(records) < before + 2 and time.monotonic() < deadline:
        time.sleep(0.005)

    target.sendall(b"".join(tamper(records[before : before + 2])))

    received: list[dict[str, Any]] = []
    while not receiver.closed and time.monotonic() < deadline:
        received += [message for message in receiver.receive() if "beat" not in message]  # sent before it was stopped
    assert receiver.closed and receiver.failure
    assert received in ([], [{"notice": "first"}])


def test_a_repeated_greeting_is_not_accepted_by_another_start_of_node_0(relay: tuple[Relay, Connection]) -> None:
    again = ServedCoordinator()
    again.raw(b"".join(relay[0].to_node_0))
    assert not again.coordinator.workers and not again.coordinator.machines
    again.coordinator.close()


def client_hello() -> bytes:
    """What a client of TLS sends first, which costs node 0 an answer."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        identity().connecting.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    assert hello[0] == HANDSHAKE
    return hello


def silent_clients(
    served: ServedCoordinator, count: int, source: str = "127.0.0.1", data: bytes = b""
) -> list[socket.socket]:
    """Open that many connections that send *data* and nothing more."""

    def connect() -> list[socket.socket]:
        address = ("127.0.0.1", served.port)
        opened = [socket.create_connection(address, source_address=(source, 0)) for _ in range(count)]
        for sock in opened:
            with contextlib.suppress(OSError):  # dropped already
                sock.sendall(data)
        return opened

    opened: list[socket.socket] = served.serve_during(connect)
    return opened


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", client_hello()], ids=["silence", "garbage", "hello"])
def test_strangers_take_a_limited_number_of_descriptors_and_keep_no_worker_out(
    served: ServedCoordinator, data: bytes
) -> None:
    first, *_ = served.join(1)
    before = descriptors()
    silent = silent_clients(served, 3 * peers.MAX_UNAUTHENTICATED, data=data)
    served.coordinator.serve(0)
    assert descriptors() - before - len(silent) <= peers.MAX_UNAUTHENTICATED + 3

    second, *_ = served.join(2)
    for worker in (first, second):
        worker.send(ready=1, attempt=ATTEMPT)
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


def test_workers_that_come_all_at_once_do_not_push_each_other_out(served: ServedCoordinator) -> None:
    served.coordinator._limit = 4
    workers = []
    for number in range(24):
        source = (f"127.0.1.{number + 1}", 0)
        sock = socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT, source_address=source)
        workers.append(Connection(sock, identity().connecting))
    waiting = list(workers)
    deadline = time.monotonic() + LIMIT
    while waiting and time.monotonic() < deadline:
        served.coordinator.serve(0)
        for worker in list(waiting):
            assert worker.receive() == [] and not worker.closed
            if worker.authenticated:
                waiting.remove(worker)
                worker.send(run="another")  # so that it makes room
    assert not waiting
    for worker in workers:
        worker.close()


def test_a_round_of_node_0_takes_few_handshakes_and_the_oldest_first(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_HANDSHAKES", 0.0)
    clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(5)]
    for sock in clients:
        sock.sendall(client_hello())
    while len(served.coordinator._unauthenticated) < 5:
        served.coordinator.serve(0.1)
    answered = sum(map(_has_data, clients))
    while answered < 5:
        assert [_has_data(sock) for sock in clients] == [number < answered for number in range(5)]
        served.coordinator.serve(0.1)
        answered += 1
    for sock in clients:
        sock.close()


def _has_data(sock: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


@pytest.mark.parametrize(
    ("nodes", "hard", "limit", "raised"),
    [(2, 524_288, 66, []), (1000, 524_288, 1064, [(4256, 524_288)]), (1000, 2048, 512, [(2048, 2048)])],
)
def test_node_0_of_many_nodes_may_open_a_descriptor_for_each(
    monkeypatch: pytest.MonkeyPatch, nodes: int, hard: int, limit: int, raised: list[tuple[int, int]]
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_limits.append(limits))
    assert peers._limit_unauthenticated(nodes) == limit
    assert set_limits == raised


@pytest.mark.parametrize("data", [b"", client_hello()], ids=["silent", "a byte now and then"])
def test_an_unauthenticated_client_is_dropped(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    (client,) = silent_clients(served, 1)
    assert served.coordinator._unauthenticated
    monkeypatch.setattr(connection, "GREETING_TIMEOUT", 0.1)
    for position in range(100):
        client.sendall(data[position : position + 1])
        served.coordinator.serve(0.01)
        time.sleep(0.002)
        if not served.coordinator._unauthenticated:
            break
    assert not served.coordinator._unauthenticated
    client.close()


def test_a_client_with_the_key_that_does_not_greet_is_dropped(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.authenticated()
    assert served.coordinator._unauthenticated
    monkeypatch.setattr(connection, "GREETING_TIMEOUT", 0.0)
    served.coordinator.serve(0)
    assert not served.coordinator._unauthenticated
    client.close()


def test_a_node_0_without_a_free_descriptor_accepts_workers_once_it_has_one(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_ACCEPT_PAUSE", 0.05)
    first, *_ = served.join(1)
    waiting = socket.create_connection(("127.0.0.1", served.port))
    with no_free_descriptor():
        for _ in range(3):
            served.coordinator.serve(0.01)
        first.send(ready=1, attempt=ATTEMPT)
        served.coordinator.serve(0.5)
    assert served.coordinator.ready == {NODE_1} and served.coordinator.lost() == []
    waiting.close()
    assert served.join(2)[1].attempt == 7


def test_a_node_0_without_a_free_descriptor_drops_the_oldest_unauthenticated_client(served: ServedCoordinator) -> None:
    silent = silent_clients(served, 2)
    oldest = next(iter(served.coordinator._unauthenticated))
    with socket.create_connection(("127.0.0.1", served.port)) as newest, no_free_descriptor():
        served.coordinator.serve(0.5)
        served.coordinator.serve(0.5)
        addresses = [each.socket.getpeername()[1] for each in served.coordinator._unauthenticated]
        assert oldest.closed and addresses[-1] == newest.getsockname()[1]
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
