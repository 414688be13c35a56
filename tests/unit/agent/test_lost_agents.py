"""Agents that are killed, hang, or go on while their successor runs.

A pod that is deleted with `--force --grace-period=0` is gone from the API at once while its processes may go on
(https://kubernetes.io/docs/tasks/run-application/force-delete-stateful-set-pod/), as they may on a node that does not
answer: its pods' objects are taken away after a while, and others take their places.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import pod_record, protocol
from tests.contract.processes import are_gone, wait_until
from tests.unit.agent.gang import LIMIT, Gang, kinds

SLEEP = ("sh", "-c", "echo $$; exec sleep 60")


def test_a_worker_that_is_killed_is_lost_within_seconds(gang: Callable[..., Gang]) -> None:
    run = gang(*SLEEP)
    run.printed(node=1)
    run.agents[1].kill()
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert run.attempt()["cause"] == "interruption" and run.attempt()["reason"].startswith("lost ")
    assert run.attempt()["lost_nodes"] == [1]


def test_a_worker_that_hangs_is_lost_after_its_silence(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "2.5")
    run = gang(*SLEEP)
    run.printed(node=1)
    run.agents[1].send_signal(signal.SIGSTOP)
    start = time.monotonic()
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert time.monotonic() - start > 2
    run.agents[1].send_signal(signal.SIGCONT)
    # Messages that node 0 has sent meanwhile may still be read.
    assert run.agents[1].wait(LIMIT) in (0, protocol.INTERRUPTED)


def test_a_node_that_has_ended_its_part_for_the_silence_of_node_0_says_so_when_that_goes_on(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has failed: the agent of node 0 was stopped."""
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "1.5")
    run = gang(*SLEEP)
    run.printed(node=0)
    run.printed(node=1)
    run.agents[0].send_signal(signal.SIGSTOP)
    wait_until(lambda: are_gone(int(pid) for pid in run.texts(1)))
    assert re.search(
        r"^waiting for node 0: its agent has answered nothing for \d+ s; other nodes end attempt 1 after 1\.5 s",
        (run.folder / "output-1-0").read_text(),
        re.MULTILINE,
    )
    run.agents[0].send_signal(signal.SIGCONT)

    run.until("end of the attempt", (run.paths.attempts / "1" / "node-0.json").exists)
    ended = run.attempt()
    assert (ended["cause"], ended["reason"]) == ("interruption", "node 1: node 0 did not answer for 1.5 s")


def test_a_node_says_that_node_0_answers_again(gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "9")
    run, output = gang(*SLEEP), "output-1-0"
    run.printed(node=1)
    run.agents[0].send_signal(signal.SIGSTOP)
    run.until("silence", lambda: "other nodes end attempt 1 after 9 s" in (run.folder / output).read_text())
    run.agents[0].send_signal(signal.SIGCONT)
    again = "waiting for node 0: no longer, it answers again\n"
    run.until("answer", lambda: again in (run.folder / output).read_text())
    run.stop()
    assert run.codes() == [0, 0]


def test_without_node_0_every_worker_ends_as_interrupted_with_all_its_processes(gang: Callable[..., Gang]) -> None:
    run = gang(*SLEEP, nodes=3)
    for node in (1, 2):
        run.printed(node=node)
    run.agents[0].kill()
    assert run.codes() == [-signal.SIGKILL, protocol.INTERRUPTED, protocol.INTERRUPTED]
    assert are_gone(int(pid) for node in (1, 2) for pid in run.texts(node))


WAITS = """
echo $SPOTMPI_ATTEMPT $$
while [ ! -e enough ]; do sleep 0.1; done
"""


def replaced_one_by_one(gang: Callable[..., Gang], nodes: int) -> Gang:
    run = gang("sh", "-c", WAITS, nodes=nodes, started=0)
    run.plan["replaces_nodes"] = True
    for node in range(nodes):
        run.start(node)
    for node in range(nodes):
        run.printed_by(node, "1 ")
    return run


def end_well(run: Gang, tmp_path: Path, survivors: int) -> None:
    """Let the programs end, and the other pods as JobSet does once node 0's has ended."""
    (tmp_path / "enough").touch()
    assert run.agents[0].wait(LIMIT) == 0
    for node in range(1, 1 + survivors):
        assert run.agents[node].poll() is None, "the first pod that ends well ends the JobSet"
        run.agents[node].send_signal(signal.SIGTERM)
        run.agents[node].wait(LIMIT)


def test_a_worker_that_is_killed_is_replaced_alone_and_the_others_begin_the_next_attempt(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = replaced_one_by_one(gang, 3)
    ranks = [int(text.split()[1]) for node in range(3) for text in run.texts(node)]
    run.agents[1].kill()
    run.until("an interruption", lambda: "restarted" in kinds(run.events()))
    waits = "1 of 3 hosts are not ready yet: 127.0.0.1 (limits.start allows 10m)"
    run.until("a wait", lambda: waits in [event.reason for event in run.events() if event.kind == "waiting"])
    assert all(run.agents[node].poll() is None for node in (0, 2))

    run.start(1, restart_count=1)
    run.printed_by(1, "2 ", restart_count=1)
    run.printed_by(2, "2 ")
    end_well(run, tmp_path, 2)

    assert kinds(run.events()) == ["started", "interrupted", "restarted", "started", "succeeded"]
    summary = json.loads(run.paths.summary.read_text())
    assert (summary["failures"], summary["interruptions"]) == (0, 1)
    assert [attempt["lost_nodes"] for attempt in summary["attempts"]] == [[1], []]
    wait_until(lambda: are_gone(ranks))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "with notice"])
def test_the_agents_of_other_nodes_join_the_next_agent_of_node_0(
    gang: Callable[..., Gang], tmp_path: Path, number: int
) -> None:
    run = replaced_one_by_one(gang, 3)
    run.agents[0].send_signal(number)
    assert run.agents[0].wait(LIMIT) == (protocol.INTERRUPTED if number == signal.SIGTERM else -number)

    run.start(0, restart_count=1)
    for node in (1, 2):
        run.printed_by(node, "2 ")
    end_well(run, tmp_path, 2)

    summary = json.loads(run.paths.summary.read_text())
    assert [attempt["cause"] for attempt in summary["attempts"]] == ["interruption", "succeeded"]
    assert (summary["failures"], summary["interruptions"]) == (0, 1)


# Beats until the test says that it is enough; no request to end is heard.
BEATS = """
trap '' TERM
while [ ! -e enough ]; do echo "$SPOTMPI_ATTEMPT" >> beats; echo beat; sleep 0.02; done
"""


def beats(folder: Path, attempt: int) -> int:
    """How often the program of an attempt has beaten."""
    path = folder / "beats"
    return path.read_text().split().count(str(attempt)) if path.exists() else 0


def recorded_events(run: Gang) -> list[str]:
    return [json.loads(line)["event"] for line in run.paths.events.read_text().splitlines()]


def test_an_agent_with_a_successor_ends_its_ranks_and_writes_nothing(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang("sh", "-c", BEATS, nodes=1, started=0)
    old = run.start(0)
    wait_until(lambda: beats(tmp_path, 1))

    new = run.start(0, restart_count=1, pod="-again")
    assert old.wait(LIMIT) == protocol.INTERRUPTED
    last = beats(tmp_path, 1)
    wait_until(lambda: beats(tmp_path, 2) > 10)
    (tmp_path / "enough").touch()

    assert new.wait(LIMIT) == 0
    assert beats(tmp_path, 1) == last, "its rank is dead when the agent ends"
    # The successor takes the attempt that left no record for an interrupted one.
    assert recorded_events(run) == ["started", "interrupted", "started", "succeeded"]
    assert not (run.paths.attempts / "1" / "node-0.json").exists()
    assert "attempt 2 has begun: attempt 1 exits without writing" in (tmp_path / "output-0-0").read_text()
    assert kinds(run.events(0, 0)) == ["started"]


# Prints nothing while its agent is about to be stopped, for lines that it has read it may still write, and then much.
PRINTS_WHILE_STOPPED = """
trap '' TERM
echo begins
while [ ! -e enough ]; do echo "$SPOTMPI_ATTEMPT" >> beats; [ ! -e stopped ] || echo beat; sleep 0.02; done
"""


def test_an_agent_that_wakes_up_after_the_end_of_its_run_writes_nothing(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang("sh", "-c", PRINTS_WHILE_STOPPED, nodes=1, started=0)
    old = run.start(0)
    log = run.paths.logs / "1" / "node-0.log"
    wait_until(lambda: log.exists() and "begins" in log.read_text())
    old.send_signal(signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    printed = beats(tmp_path, 1) + 10
    wait_until(lambda: beats(tmp_path, 1) > printed)
    frozen = time.monotonic()
    new = run.start(0, restart_count=1, pod="-again")
    wait_until(lambda: beats(tmp_path, 2))
    (tmp_path / "enough").touch()
    assert new.wait(LIMIT) == 0
    wait_until(lambda: time.monotonic() > frozen + pod_record.MAX_AGE)
    before = [path.read_text() for path in (log, run.paths.events, run.paths.summary)]

    old.send_signal(signal.SIGCONT)

    assert old.wait(LIMIT) == protocol.INTERRUPTED
    assert [path.read_text() for path in (log, run.paths.events, run.paths.summary)] == before


def test_the_launchers_of_other_nodes_end_with_the_limits_of_the_run_though_that_of_node_0_has_ended(
    gang: Callable[..., Gang],
) -> None:
    """Nothing else ended a node that hangs after the others, for which the run pays."""
    run = gang("sh", "-c", '[ "$RANK" = 0 ] || { echo "here"; sleep 300; }', limits={"run": "8s"})
    assert run.agents[0].wait(30) == protocol.NOT_RETRYABLE
    assert run.attempt()["reason"] == "limits.run (8s) is over; raise it and resume the run"
    waits = [event.values["reason"] for event in run.events() if event.kind == "waiting"]
    assert waits[-1] == "the launcher of node 0 has ended, those of these nodes have not: 1"
