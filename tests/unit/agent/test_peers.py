"""Agents know of each other over one connection per worker: real sockets, no cluster."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spotmpi.agent import connection, peers
from spotmpi.agent.peers import join
from tests.unit.agent.peer_ends import TOKEN, Led, free_port, wait_for_message


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
        ({"token": "token-e"}, "not of this run"),
        ({"token": ""}, "not of this run"),
        ({"generation": 3}, "generation 3 is not 4"),
        ({"generation": None}, "not of this run"),
        ({"node": 0}, "node 0 is not expected"),
        ({"node": 3}, "node 3 is not expected"),
        ({"node": "1"}, "not of this run"),
        ({"node": True}, "not of this run"),
    ],
)
def test_whoever_speaks_for_another_run_generation_or_node_is_refused(led: Led, greeting: Any, words: str) -> None:
    assert led.join(**greeting) == f"127.0.0.1 refuses this node: '{words}'"
    assert led.hub.missing() == [1, 2] and not led.hub.workers


def test_a_second_worker_for_the_same_node_is_refused_and_the_first_one_stays(led: Led) -> None:
    connection, _ = led.join(1)
    assert "node 1 is not expected" in led.join(1)
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
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 0.05)
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
    greeting = {"node": 1, "generation": 4}
    assert [join("127.0.0.1", TOKEN, greeting, led.port) for _ in range(3)] == ["127.0.0.1 does not answer"] * 3

    monkeypatch.setattr(peers, "ANSWER", 10.0)
    connection, _ = next(found for found in (led.join(1) for _ in range(100)) if not isinstance(found, str))
    connection.send(ready=1)
    led.hub.serve(5)

    assert led.hub.lost() == [] and led.hub.missing() == [2] and set(led.hub.machines) == {1}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds: 0.3 of silence are a loss, and a beat comes every 0.02."""
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "HEARTBEAT_INTERVAL", 0.02)


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
    monkeypatch.setattr(connection, "STALL", 0.1)
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


def test_nobody_there_and_nobody_answering_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    greeting = {"node": 1, "generation": 4}
    assert "refused" in str(join("127.0.0.1", TOKEN, greeting, free_port()))
    assert "not-a-host.invalid" in str(join("not-a-host.invalid", TOKEN, greeting, 1))
    monkeypatch.setattr(peers, "ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert join("127.0.0.1", TOKEN, greeting, deaf.getsockname()[1]) == "127.0.0.1 does not answer"
