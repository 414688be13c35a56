"""Agents know of each other over one connection per worker: real sockets, no cluster."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs.pod import peers
from jobs.pod.peers import Connection, Hub, join

TOKEN = "token-\u00e9"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Led:
    """A hub for three nodes that is served by a thread while the other end talks."""

    def __init__(self) -> None:
        self.port = free_port()
        self.hub = Hub(TOKEN, 3, 4, {"welcome": 7}, self.port)

    def serving(self, act: Callable[[], Any]) -> Any:
        """Give what *act* gives, done beside a served hub."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(act()))
        thread.start()
        while thread.is_alive():
            self.hub.serve(0.01)
        self.hub.serve(0.01)
        return found[0]

    def join(self, node: object = 1, generation: object = 4, hello: object = TOKEN) -> Any:
        greeting = {"hello": hello, "node": node, "generation": generation, "host": "h"}
        return self.serving(lambda: join("127.0.0.1", greeting, self.port))

    def raw(self, data: bytes) -> bytes:
        """Give what the hub answers to bytes of a stranger until it closes the connection."""

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
                sock.sendall(data)
                try:
                    return sock.recv(1000)
                except ConnectionResetError:
                    return b""  # closed while there was still something to read

        return bytes(self.serving(talk))


@pytest.fixture
def led() -> Iterator[Led]:
    led = Led()
    yield led
    led.hub.close()


def test_a_worker_is_welcomed_with_the_attempt_and_missing_until_it_is_ready(led: Led) -> None:
    connection, welcome = led.join(1)
    assert welcome == {"welcome": 7}
    assert led.hub.missing() == [1, 2]
    connection.send(ready=1)
    led.hub.serve(0.5)
    assert led.hub.missing() == [2]
    assert led.hub.lost() == []


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        ({"hello": "token-e"}, "not of this run"),
        ({"hello": None}, "not of this run"),
        ({"generation": 3}, "generation 3 is not 4"),
        ({"generation": None}, "generation None is not 4"),
        ({"node": 0}, "node 0 is not expected"),
        ({"node": 3}, "node 3 is not expected"),
        ({"node": "1"}, "node '1' is not expected"),
        ({"node": True}, "node True is not expected"),
    ],
)
def test_whoever_speaks_for_another_run_generation_or_node_is_refused(led: Led, greeting: Any, words: str) -> None:
    assert led.join(**greeting) == words
    assert led.hub.missing() == [1, 2] and not led.hub.workers


def test_a_second_worker_for_the_same_node_is_refused_and_the_first_one_stays(led: Led) -> None:
    connection, _ = led.join(1)
    assert led.join(1) == "node 1 is not expected"
    connection.send(ready=1)
    led.hub.serve(0.5)
    assert 1 in led.hub.ready


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"5\n",
        b'["hello"]\n',
        b"\xff\xfe\n",
        b'{"hello": "\\ud800", "node": 1, "generation": 4}\n',
        b'{"ready": 1}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 200_000,
    ],
)
def test_noise_from_a_stranger_closes_its_connection_and_nothing_else(led: Led, noise: bytes) -> None:
    connection, _ = led.join(1)
    answer = led.raw(noise)
    assert answer == b"" or "refused" in json.loads(answer)
    connection.send(ready=1)
    led.hub.serve(0.5)
    assert 1 in led.hub.ready


def test_a_silent_stranger_is_forgotten(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SILENCE", 0.05)
    with socket.create_connection(("127.0.0.1", led.port)):
        led.hub.serve(0.5)
        assert led.hub._strangers
        time.sleep(0.1)
        led.hub.serve(0)
        assert not led.hub._strangers


def test_a_closed_connection_is_a_lost_node_unless_it_had_ended(led: Led) -> None:
    first, _ = led.join(1)
    second, _ = led.join(2)
    second.send(ended=3, reason="exit code 3")
    led.hub.serve(0.5)
    first.close()
    second.close()
    led.hub.serve(0.5)
    led.hub.serve(0)
    assert led.hub.lost() == [1]
    assert led.hub.ended == {2: (3, "exit code 3")}


def test_a_worker_that_came_while_node_0_was_busy_comes_again_and_is_not_lost(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ANSWER", 0.05)
    greeting = {"hello": TOKEN, "node": 1, "generation": 4, "host": "h"}
    assert [join("127.0.0.1", greeting, led.port) for _ in range(3)] == ["127.0.0.1 does not answer"] * 3

    monkeypatch.setattr(peers, "ANSWER", 10.0)
    connection, _ = next(found for found in (led.join(1) for _ in range(100)) if not isinstance(found, str))
    connection.send(ready=1)
    led.hub.serve(5)

    assert led.hub.lost() == [] and led.hub.missing() == [2] and set(led.hub.machines) == {1}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds: 0.3 of silence are a loss, and a beat comes every 0.02."""
    monkeypatch.setattr(peers, "SILENCE", 0.3)
    monkeypatch.setattr(peers, "BEAT", 0.02)


@pytest.mark.usefixtures("hurried")
def test_an_agent_that_waits_for_a_disk_longer_than_the_silence_of_a_loss_is_not_lost(led: Led) -> None:
    connection, _ = led.join(1)
    time.sleep(0.6)  # neither side looks
    assert not connection.lost and led.hub.lost() == []
    connection.receive()
    led.hub.serve(0.1)
    assert not connection.lost and led.hub.lost() == []


@pytest.mark.usefixtures("hurried")
def test_an_agent_that_stalls_for_good_is_lost_to_the_other_side(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STALL", 0.1)
    led.join(1)
    looking, _ = led.join(2)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        looking.receive()
        led.hub.serve(0.02)
    assert led.hub.lost() == [1] and not looking.lost
    while time.monotonic() < deadline + 1:  # node 0 stalls in its turn
        looking.receive()
        time.sleep(0.02)
    assert looking.lost


def test_what_node_0_tells_reaches_every_worker(led: Led) -> None:
    workers = [led.join(node)[0] for node in (1, 2)]
    led.hub.tell(go=1)
    for worker in workers:
        assert wait_for_message(worker) == [{"go": 1}]


def wait_for_message(connection: Connection) -> list[dict[str, Any]]:
    """Give the first messages that arrive within 5 s."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = connection.receive()
        if found:
            return found
        time.sleep(0.005)
    return []


def test_messages_that_come_with_the_welcome_are_not_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock = listener.accept()[0]
            sock.recv(1000)
            sock.sendall(b'{"welcome": 1}\n{"go": 1}\n{"be')
            sock.sendall(b'at": 1}\n')
            time.sleep(0.2)
            sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        joined = join("127.0.0.1", {"hello": "x"}, listener.getsockname()[1])
        assert not isinstance(joined, str)
        messages: list[dict[str, Any]] = []
        while not joined[0].closed:
            messages += joined[0].receive()
        thread.join()
    assert messages == [{"go": 1}, {"beat": 1}]


def test_nobody_there_and_nobody_answering_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refused" in str(join("127.0.0.1", {"hello": TOKEN}, free_port()))
    assert "not-a-host.invalid" in str(join("not-a-host.invalid", {"hello": TOKEN}, 1))
    monkeypatch.setattr(peers, "ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert join("127.0.0.1", {"hello": TOKEN}, deaf.getsockname()[1]) == "127.0.0.1 does not answer"
