"""Agents prove to each other that they are of one run; whoever cannot takes little and harms nobody: real sockets."""

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

from spotmpi.agent import authentication, connection, peers
from spotmpi.agent.authentication import Session
from spotmpi.agent.connection import Connection
from spotmpi.agent.peers import join
from tests.unit.agent.peer_ends import TOKEN, Led, wait_for_message


@pytest.fixture
def led() -> Iterator[Led]:
    led = Led()
    yield led
    led.hub.close()


class Impostor:
    """Listens in node 0's place and says *lines* after its challenge; ``greeting`` is what the worker answered."""

    def __init__(self, *lines: bytes, token: str = "") -> None:
        self._lines = lines
        self._token = token
        self.greeting = b""

    def join(self) -> Any:
        """What a worker makes of it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._answer, args=(listener,))
            thread.start()
            joined = join("127.0.0.1", TOKEN, {"node": 1, "generation": 4}, listener.getsockname()[1])
            thread.join()
        return joined

    def _answer(self, listener: socket.socket) -> None:
        with listener.accept()[0] as sock:
            sock.sendall(b'{"challenge": "node 0"}\n')
            self.greeting = sock.recv(1000)
            theirs = json.loads(self.greeting.partition(b" ")[2])["challenge"]
            session = Session(self._token, authentication.NODE_0, ("node 0", theirs), 1, 4)
            said = b"".join((session.sign(line) if self._token else line) + b"\n" for line in self._lines)
            with contextlib.suppress(ConnectionError):  # a worker that has heard enough
                sock.sendall(said[:-5])
                sock.sendall(said[-5:])
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
def test_who_answers_in_node_0s_place_without_the_token_is_not_believed(impostor: Impostor) -> None:
    assert impostor.join() == "127.0.0.1 is not node 0 of this run"


def test_a_refusal_is_shown_bounded_and_without_control_characters() -> None:
    refusal = json.dumps({"refused": "\x1b]0;title\x07" + "x" * 1000}).encode()
    said = Impostor(refusal).join()
    assert said.startswith("127.0.0.1 refuses this node: '\\x1b]0;title\\x07xx") and len(said) < 300


@pytest.mark.parametrize("line", [b'{"refused": 5}', b"x" * 10_000])
def test_what_is_no_answer_of_node_0_is_none(line: bytes) -> None:
    assert Impostor(line).join() in ("127.0.0.1 is not node 0 of this run", "127.0.0.1 does not answer")


class Relay:
    """Passes the bytes of one worker and the hub on and keeps them; may say something to either of its own."""

    def __init__(self, led: Led) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._hub_port = led.port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.worker = self._listener.accept()[0]
        self.hub = socket.create_connection(("127.0.0.1", self._hub_port))
        threading.Thread(target=self._pass, args=(self.worker, self.hub), daemon=True).start()
        self._pass(self.hub, self.worker)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # until either end closes
            while data := source.recv(1000):
                self.heard += data
                target.sendall(data)


@pytest.fixture
def relay(led: Led) -> Iterator[tuple[Relay, Connection]]:
    relay = Relay(led)
    joined = led.serving(lambda: join("127.0.0.1", TOKEN, {"node": 1, "generation": 4}, relay.port))
    assert not isinstance(joined, str)
    yield relay, joined[0]
    for sock in (relay.worker, relay.hub):
        sock.close()


def test_the_token_never_travels(relay: tuple[Relay, Connection]) -> None:
    assert relay[0].heard.count(b"challenge") == 2
    assert TOKEN.encode() not in relay[0].heard and b"token" not in relay[0].heard


@pytest.mark.parametrize("line", [b'{"over": 1}\n', b"0" * 64 + b' {"over": 1}\n', None])
def test_who_passes_messages_on_can_neither_add_one_nor_repeat_one(
    led: Led, relay: tuple[Relay, Connection], line: bytes | None
) -> None:
    between, worker = relay
    led.hub.tell(go=1)
    assert wait_for_message(worker) == [{"go": 1}]
    go = next(said for said in between.heard.splitlines(keepends=True) if b'"go"' in said)
    between.worker.sendall(line or go)
    assert wait_for_message(worker) == []
    assert worker.closed

    own = next(said for said in between.heard.splitlines(keepends=True) if b'"beat"' in said)
    between.hub.sendall(line or own)
    led.hub.serve(1)
    led.hub.serve(0.1)
    assert led.hub.workers[1].closed or not led.hub.workers


def test_a_recorded_greeting_makes_nobody_a_worker(led: Led, relay: tuple[Relay, Connection]) -> None:
    greeting = next(said for said in relay[0].heard.splitlines(keepends=True) if b'"generation"' in said)
    second = led.raw(greeting.replace(b'"node": 1', b'"node": 2'))
    assert json.loads(led.raw(greeting)) == json.loads(second) == {"refused": "not of this run"}


def strangers(led: Led, count: int) -> list[socket.socket]:
    """Open that many connections that say nothing."""

    def connect() -> list[socket.socket]:
        return [socket.create_connection(("127.0.0.1", led.port)) for _ in range(count)]

    opened: list[socket.socket] = led.serving(connect)
    return opened


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_silent_strangers_take_a_limited_number_of_descriptors_and_keep_no_worker_out(led: Led) -> None:
    first, _ = led.join(1)
    before = descriptors()
    silent = strangers(led, 3 * peers.STRANGERS)
    led.hub.serve(0)
    assert descriptors() - before - len(silent) <= peers.STRANGERS + 3

    second, _ = led.join(2)
    for worker in (first, second):
        worker.send(ready=1)
    led.hub.serve(0.5)
    led.hub.serve(0.1)
    assert led.hub.missing() == [] and led.hub.lost() == []
    for sock in silent:
        sock.close()


def test_a_stranger_that_says_a_little_now_and_then_is_forgotten_like_a_silent_one(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stranger,) = strangers(led, 1)
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 0.1)
    deadline = time.monotonic() + 5
    while led.hub._strangers and time.monotonic() < deadline:
        stranger.send(b"x")
        led.hub.serve(0.02)
    assert not led.hub._strangers
    stranger.close()


def test_a_node_0_without_a_free_descriptor_goes_on_and_takes_workers_once_it_has_one(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_PAUSE", 0.05)
    first, _ = led.join(1)
    waiting = socket.create_connection(("127.0.0.1", led.port))
    with none_free():
        for _ in range(3):
            led.hub.serve(0.01)
        first.send(ready=1)
        led.hub.serve(0.5)
    assert led.hub.ready == {1} and led.hub.lost() == []
    waiting.close()
    assert led.join(2)[1] == {"welcome": 7}


def test_a_node_0_without_a_free_descriptor_makes_room_by_the_oldest_stranger(led: Led) -> None:
    silent = strangers(led, 2)
    oldest = next(iter(led.hub._strangers))
    with socket.create_connection(("127.0.0.1", led.port)) as newest, none_free():
        led.hub.serve(0.5)
        led.hub.serve(0.5)
        assert oldest.closed and json.loads(newest.recv(1000))["challenge"]
    for sock in silent:
        sock.close()


@contextlib.contextmanager
def none_free() -> Iterator[None]:
    """Inside, this process can open no descriptor: the soft limit is the lowest free one, so the kernel says EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
