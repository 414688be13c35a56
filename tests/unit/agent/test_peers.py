"""Agents communicate over one connection per worker: real sockets, no cluster."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import connection, tcp
from spotmpi.agent.peers import Channel
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.schema import Greeting
from spotmpi.agent.tcp import join
from tests.contract.processes import wait_until
from tests.testbed.web import free_port
from tests.unit.agent.peer_ends import ATTEMPT, ServedCoordinator, identity, wait_for_message

ALERT = 21  # the type of a record of TLS (RFC 8446, 5.1)
NODE_1 = Member(NODE, 1)
GREETING: Greeting = {"member": "node/1", "restart_count": 4}


def test_a_worker_is_welcomed_with_the_attempt_and_missing_until_it_is_ready(served: ServedCoordinator) -> None:
    connection, (attempt, *_) = served.join(1)
    assert attempt == ATTEMPT
    assert served.coordinator.missing() == [1, 2]
    assert served.serve_until_ready(1, connection)
    assert served.coordinator.missing() == [2]
    assert served.coordinator.lost() == []


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        ({"run": "plain-2"}, "not of this run"),
        ({"run": ""}, "not of this run"),
        ({"restart_count": 3}, "restart count 3 is not 4"),
        ({"restart_count": None}, "not of this run"),
        ({"node": 0}, "node 0 is not expected"),
        ({"node": 3}, "node 3 is not expected"),
        ({"node": "worker/0"}, "worker 0 is not expected"),
        ({"node": "standby/0"}, "standby 0 is not expected"),
        ({"node": "pod/1"}, "not of this run"),
        ({"node": None}, "not of this run"),
    ],
)
def test_a_worker_of_another_run_or_node_is_refused(served: ServedCoordinator, greeting: Any, words: str) -> None:
    assert served.join(**greeting) == f"127.0.0.1 refuses this node: '{words}'"
    assert served.coordinator.missing() == [1, 2] and not served.coordinator.workers


def test_node_0_knows_the_ranks_of_other_nodes_in_this_attempt(served: ServedCoordinator) -> None:
    worker, _ = served.join()
    worker.send(ranks={7: "busy"}, attempt=ATTEMPT - 1)
    worker.send(ranks={3: "idle"}, attempt=ATTEMPT)
    served.serve_until_ready(1, worker)
    ranks = served.coordinator.ranks
    assert ranks == {Member(NODE, 1): {3: "idle"}}
    served.coordinator.begin(ATTEMPT + 1)
    assert served.coordinator.ranks is ranks and ranks == {}


def test_a_second_worker_for_the_same_node_is_refused_and_the_first_one_stays(served: ServedCoordinator) -> None:
    connection, *_ = served.join(1)
    assert "node 1 is not expected" in served.join(1)
    assert served.serve_until_ready(1, connection)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n\x00\x00\x00",
        b'{"run": "plain-1", "member": "node/1", "restart_count": 4}\n',
        b'{"ready": 1}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 200_000,
        b"\x16\x03\x01\xff\xff" + b"\x01" * 100_000,
    ],
)
def test_noise_of_a_client_without_the_key_closes_its_connection_only(served: ServedCoordinator, noise: bytes) -> None:
    connection, *_ = served.join(1)
    answer = served.raw(noise)
    assert answer == b"" or answer[0] == ALERT
    assert served.serve_until_ready(1, connection)


@pytest.mark.parametrize(
    "greeting",
    [
        b"5\n",
        b'["hello"]\n',
        b"\xff\xfe\n",
        b'{"hello": "\\ud800", "run": "plain-1", "member": "node/1", "restart_count": 4.0}\n',
        b'{"ready": 1}\n',
        b"[" * 10_000 + b"\n",
        b"x" * 200_000,
    ],
)
def test_a_client_with_the_key_and_without_a_greeting_is_not_welcome(
    served: ServedCoordinator, greeting: bytes
) -> None:
    connection, *_ = served.join(1)
    answer = served.raw(greeting, identity().connecting)
    assert answer == b"" or json.loads(answer) == {"refused": "not of this run"}
    assert not served.coordinator._unauthenticated
    assert served.serve_until_ready(1, connection)


def test_a_closed_connection_is_a_lost_node_unless_it_had_ended(served: ServedCoordinator) -> None:
    first, *_ = served.join(1)
    second, *_ = served.join(2)
    second.send(ended=3, reason="exit code 3", attempt=ATTEMPT)
    served.coordinator.serve(0.5)
    first.close()
    second.close()
    served.coordinator.serve(0.5)
    served.coordinator.serve(0)
    assert served.coordinator.lost() == [NODE_1]
    assert served.coordinator.ended == {Member(NODE, 2): (3, "exit code 3")}


def test_a_worker_that_connects_while_node_0_is_busy_connects_again_and_is_not_lost(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "ANSWER_TIMEOUT", 0.05)
    assert [join("127.0.0.1", Channel(identity(), served.port), GREETING) for _ in range(3)] == [
        "127.0.0.1 does not answer"
    ] * 3

    monkeypatch.setattr(tcp, "ANSWER_TIMEOUT", 10.0)
    connection, *_ = next(joined for joined in (served.join(1) for _ in range(100)) if not isinstance(joined, str))
    connection.send(ready=1, attempt=ATTEMPT)
    served.coordinator.serve(5)

    coordinator = served.coordinator
    assert (coordinator.lost(), coordinator.missing(), set(coordinator.machines)) == ([], [2], {NODE_1})


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds: a heartbeat timeout of 0.3 for an agent that stalls, and an interval of 0.02."""
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "HEARTBEAT_INTERVAL", 0.02)


@pytest.mark.usefixtures("short_timeouts")
def test_an_agent_that_waits_for_its_disk_beyond_the_heartbeat_timeout_is_not_lost(served: ServedCoordinator) -> None:
    connection, *_ = served.join(1)
    time.sleep(0.6)  # neither side polls
    assert not connection.lost and served.coordinator.lost() == []
    connection.receive()
    served.coordinator.serve(0.1)
    assert not connection.lost and served.coordinator.lost() == []


@pytest.mark.usefixtures("short_timeouts")
def test_an_agent_that_stalls_is_lost_to_the_other_side(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT", 1.0)  # longer than a busy machine lets a thread wait
    monkeypatch.setattr(connection, "STALL", 0.1)
    served.join(1)
    polling, *_ = served.join(2)

    def lost() -> list[Member]:
        polling.receive()
        served.coordinator.serve(0.02)
        return served.coordinator.lost()

    assert wait_until(lost) == [NODE_1] and not polling.lost

    def is_lost() -> bool:  # now node 0 stalls
        polling.receive()
        return bool(polling.lost)

    wait_until(is_lost)


# In a network of its own, whose only interface goes down: packets are lost, and no end closes the connection.
CUT = """
import fcntl, socket, struct, sys, time
from tests.unit.agent.peer_ends import Pair, identity

def set_up(up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 0x41 if up else 0))  # SIOCSIFFLAGS: UP and RUNNING

set_up(True)
pair = Pair(identity(), identity())
assert pair.shake_hands()
for end in (pair.worker, pair.node_0):
    end.admit(0.5)
if sys.argv[1] == "cut":
    set_up(False)
begin = time.monotonic()
while not pair.node_0.lost and time.monotonic() < begin + 2:
    pair.node_0.send_heartbeat(0.1)
    pair.node_0.receive()
    time.sleep(0.01)
print("lost" if pair.node_0.lost else "alive")
"""
UNSHARE = ["unshare", "--map-root-user", "--net"]


@pytest.mark.parametrize(("what", "state"), [("cut", "lost"), ("stalled", "alive")])
def test_a_host_that_acknowledges_nothing_is_lost_within_seconds_and_an_agent_that_does_nothing_is_not(
    what: str, state: str
) -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace: unshare of util-linux, and a kernel that lets its user have one")
    command = [*UNSHARE, sys.executable, "-c", CUT, what]
    folder = Path(__file__).resolve().parents[3]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert result.stdout == f"{state}\n", result.stderr


@pytest.mark.parametrize(("nodes", "interval"), [(2, 0.2), (60, 0.2), (600, 2.0)])
def test_many_nodes_send_fewer_heartbeats_each(nodes: int, interval: float) -> None:
    beats = connection.Heartbeat(lambda: [], lambda: 0.0, nodes)
    beats.stop()
    assert beats._interval == pytest.approx(interval)


def test_workers_stay_for_the_next_attempt_in_which_nothing_of_the_last_one_counts(served: ServedCoordinator) -> None:
    coordinator, (worker, (attempt, *_)) = served.coordinator, served.join(1)
    worker.send(ready=1, attempt=attempt)
    worker.send(ended=0, reason=None, attempt=attempt)
    coordinator.serve(0.5)
    coordinator.broadcast_to_gang(end=attempt)
    assert wait_for_message(worker) == [{"end": attempt}]
    worker.send(idle=1, attempt=attempt)
    coordinator.serve(0.5)
    assert (coordinator.ready, set(coordinator.ended), coordinator.idle) == ({NODE_1}, {NODE_1}, {NODE_1})

    coordinator.begin(attempt + 1)

    assert wait_for_message(worker) == [{"welcome": attempt + 1, "member": "node/1"}]
    worker.send(ended=9, reason="late", attempt=attempt)
    worker.send(ready=1, attempt=attempt)
    coordinator.serve(0.5)
    coordinator.serve(0.0)
    assert (coordinator.ready, coordinator.ended, coordinator.idle) == (set(), {}, set())
    worker.send(ready=1, attempt=attempt + 1)
    coordinator.serve(0.5)
    assert coordinator.missing() == [2] and coordinator.is_whole()
    assert served.join(2)[1].attempt == attempt + 1, "who joins now begins with this attempt"


def test_the_last_message_reaches_a_worker_that_sends_heartbeats_before_it_reads(served: ServedCoordinator) -> None:
    worker, *_ = served.join(1)
    worker.send(beat=1)
    served.coordinator.broadcast(over=1)
    closing = threading.Thread(target=served.coordinator.close)
    closing.start()
    for _ in range(20):  # as its thread does, while it waits for a processor
        worker.send(beat=1)
        time.sleep(0.01)
    assert wait_for_message(worker)[-1:] == [{"over": 1}]
    worker.receive()
    closing.join(60)
    assert worker.closed and not closing.is_alive()


@pytest.mark.parametrize("how", ["a notice", "a lost connection"])
def test_a_gang_is_not_whole_with(served: ServedCoordinator, how: str) -> None:
    worker, (attempt, *_) = served.join(1)
    worker.send(ended=0, reason=None, attempt=attempt)
    if how == "a notice":
        worker.send(notice="its pod received SIGTERM")
    else:
        worker.close()
    served.coordinator.serve(0.5)
    served.coordinator.serve(0.0)
    assert not served.coordinator.is_whole()


def test_a_broadcast_of_node_0_reaches_every_worker(served: ServedCoordinator) -> None:
    workers = [served.join(node)[0] for node in (1, 2)]
    served.coordinator.broadcast(go=1)
    for worker in workers:
        assert any({"go": 1} in wait_for_message(worker) for _ in range(9)), "among heartbeats"


def test_a_closed_port_and_a_silent_one_have_different_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refused" in str(join("127.0.0.1", Channel(identity(), free_port()), GREETING))
    assert "not-a-host.invalid" in str(join("not-a-host.invalid", Channel(identity(), 1), GREETING))
    monkeypatch.setattr(tcp, "ANSWER_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert join("127.0.0.1", Channel(identity(), silent.getsockname()[1]), GREETING) == "127.0.0.1 does not answer"


def test_a_worker_that_joins_again_and_again_keeps_no_thread_of_earlier_connections(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of a pool does, for each attempt of node 0."""
    monkeypatch.setattr(connection, "HEARTBEAT_INTERVAL", 0.001)
    before = set(threading.enumerate())
    for joined, *_ in [served.join(1), served.join(2)]:
        joined.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before


def test_a_lost_node_leaves_its_place_at_the_next_attempt_and_its_old_pod_is_refused(
    replacing: ServedCoordinator,
) -> None:
    old, *_ = replacing.join(1, restart_count=0)
    other, *_ = replacing.join(2, restart_count=3)
    assert replacing.serve_until_ready(1, old) and replacing.serve_until_ready(2, other)
    old.close()
    replacing.serve_during(lambda: None)
    assert replacing.coordinator.lost() == [NODE_1]

    replacing.coordinator.begin(ATTEMPT + 1)

    assert replacing.coordinator.lost() == [] and replacing.coordinator.is_whole()
    welcome = {"welcome": ATTEMPT + 1, "member": "node/2"}
    assert any(welcome in wait_for_message(other) for _ in range(9)), "among heartbeats"
    assert replacing.coordinator.missing() == [1, 2]
    new, (attempt, *_) = replacing.join(1, restart_count=1)
    assert attempt == ATTEMPT + 1 and not new.closed
    assert "a newer pod of node 1 has joined" in replacing.join(1, restart_count=0)
    assert not replacing.coordinator.workers[NODE_1].closed


@pytest.mark.parametrize("restart_count", [0, 1])
def test_an_agent_that_joins_again_shows_that_its_first_connection_is_lost(
    replacing: ServedCoordinator, restart_count: int
) -> None:
    old, *_ = replacing.join(1, restart_count=0)
    assert replacing.serve_until_ready(1, old)
    assert "the attempt of the pod before has not ended" in replacing.join(1, restart_count=restart_count)
    assert replacing.coordinator.lost() == [NODE_1]
    replacing.coordinator.begin(ATTEMPT + 1)
    assert replacing.join(1, restart_count=restart_count)[1].attempt == ATTEMPT + 1


def test_a_node_with_notice_is_let_go_at_the_next_attempt(replacing: ServedCoordinator) -> None:
    leaving, *_ = replacing.join(1, restart_count=0)
    leaving.send(notice="its pod received SIGTERM")
    assert replacing.serve_until_ready(1, leaving)
    assert replacing.coordinator.notices == {NODE_1: "its pod received SIGTERM"}
    replacing.coordinator.begin(ATTEMPT + 1)
    assert not replacing.coordinator.notices and not replacing.coordinator.workers
    wait_for_message(leaving)
    assert leaving.closed


def test_a_connection_that_another_thread_closes_just_now_ends_no_agent(served: ServedCoordinator) -> None:
    """As that of heartbeats does with one whose end takes nothing more."""
    joined, *_ = served.join(1)
    mine = served.coordinator.workers[Member(NODE, 1)]
    mine.socket.close()  # which `close` does a moment after it says so
    joined.socket.close()
    served.coordinator.serve(0.0)
    joined.wait(0.0)
    for each in (mine, joined):
        each.close()
