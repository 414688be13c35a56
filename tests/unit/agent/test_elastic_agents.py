"""Agents of a run that may have fewer nodes, as processes of this machine: each attempt has those that are there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.attempt_history import avoided_machines
from spotmpi.agent.context import AgentContext
from spotmpi.agent.elastic_coordinator import ElasticCoordinator
from spotmpi.agent.peers import Channel
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.record import Record
from tests.clocks import SetClock
from tests.contract.processes import are_gone, wait_until
from tests.unit.agent.agent_process import mounts_below
from tests.unit.agent.gang import LIMIT, Gang, end_well
from tests.unit.agent.peer_ends import identity

# Each rank prints what its program needs to know; rank 0 writes checkpoints.
TRAINS = """
import os, sys, time, spotmpi
names = ("ATTEMPT", "WORLD_SIZE", "HOSTS", "MOST_RANKS")
print("rank", os.environ["RANK"], "of", *(os.environ["SPOTMPI_" + name] for name in names), os.getpid(), flush=True)
while not os.path.exists("enough"):
    if os.environ["RANK"] == "0":
        spotmpi.checkpoint.save(1, {"a": 1})
    time.sleep(0.02)
"""


def elastic(gang: Callable[..., Gang], nodes: list[int], patience: str = "1h", **values: Any) -> Gang:
    capacity = {"patience": patience}
    checkpoint = {"every": "0.5s"}
    run = gang(sys.executable, "-c", TRAINS, nodes=nodes, started=0, capacity=capacity, checkpoint=checkpoint, **values)
    run.plan |= {"replaces_nodes": True}
    return run


def attempts(run: Gang) -> list[dict[str, Any]]:
    return [event.values for event in run.events() if event.kind == "started"]


def ranks(run: Gang, attempt: int) -> dict[int, str]:
    """What the ranks of an attempt have printed, by the pod that they run in, without their process ids."""
    found = {}
    for pod in run.agents:
        for restart_count in (0, 1):
            for text in run.texts(pod, restart_count):
                if f" of {attempt} " in text:
                    found[pod] = text.rpartition(" ")[0]
    return found


def started(run: Gang, attempt: int, size: int) -> dict[int, str]:
    """The ranks of an attempt, once all have printed theirs."""
    run.until(f"attempt {attempt} on {size} nodes", lambda: len(ranks(run, attempt)) == size)
    return ranks(run, attempt)


def test_a_run_begins_on_the_most_allowed_nodes_that_came_in_time(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = elastic(gang, [1, 2, 4], patience="3s", price=1.5)
    for pod in (0, 1, 3):
        run.start(pod)

    assert sorted(started(run, 1, 2).values()) == ["rank 0 of 1 2 1 4", "rank 1 of 1 2 1 4"]
    waits = [event.values["reason"] for event in run.events() if event.kind == "waiting"]
    assert any("after 3s it begins on as many of 1, 2, 4 nodes as are ready" in reason for reason in waits), waits
    assert attempts(run)[0]["nodes"] == 2

    summary = end_well(run, tmp_path)
    (attempt,) = summary["attempts"]
    assert attempt["world"]["size"] == 2 and len(attempt["world"]["pods"]) == 2
    assert attempt["world"]["standby"] == 1, "it is paid for as well"


def test_an_agent_of_node_0_that_is_replaced_before_the_first_ranks_waits_as_long_for_the_others(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = elastic(gang, [1, 2])
    run.start(0)
    run.until("a wait", lambda: any(event.kind == "waiting" for event in run.events()))
    run.agents[0].kill()
    run.agents[0].wait(LIMIT)
    run.start(0, restart_count=1)

    run.until("a wait", lambda: any(event.kind == "waiting" for event in run.events(0, 1)))
    (wait,) = [str(event.reason) for event in run.events(0, 1) if event.kind == "waiting"]
    assert "after 9m it begins on as many of 1, 2 nodes as are ready" in wait, wait
    run.start(1)
    started(run, 2, 2)
    end_well(run, tmp_path)


def test_all_nodes_that_are_there_at_once_are_not_waited_for(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = elastic(gang, [2, 3])
    for pod in range(3):
        run.start(pod)

    assert started(run, 1, 3) == {pod: f"rank {pod} of 1 3 1 3" for pod in range(3)}
    assert end_well(run, tmp_path)["attempts"][0]["world"]["pods"] == ["node/0", "node/1", "node/2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "with notice"])
def test_a_run_goes_on_with_fewer_nodes_after_a_loss_and_with_all_once_the_next_pod_is_ready(
    gang: Callable[..., Gang], tmp_path: Path, number: int
) -> None:
    run = elastic(gang, [1, 2, 3])
    for pod in range(3):
        run.start(pod)
    started(run, 1, 3)
    run.until("a checkpoint", lambda: (tmp_path / "runs" / "plain-1" / "checkpoints").exists())
    process_ids = [int(text.split()[-1]) for pod in range(3) for text in run.texts(pod) if text.startswith("rank")]

    run.agents[1].send_signal(number)
    smaller = started(run, 2, 2)
    assert set(smaller) == {0, 2} and sorted(smaller.values()) == ["rank 0 of 2 2 1 3", "rank 1 of 2 2 1 3"]
    wait_until(lambda: are_gone(process_ids))

    run.start(1, restart_count=1)
    larger = started(run, 3, 3)
    assert sorted(larger.values()) == [f"rank {rank} of 3 3 1 3" for rank in range(3)]
    reasons = [event.values["reason"] for event in run.events() if event.kind == "restarted"]
    assert reasons[1] == "3 nodes are ready: continues on 3 instead of 2"

    summary = end_well(run, tmp_path)
    assert (summary["failures"], summary["interruptions"]) == (0, 2)
    assert [attempt["world"]["size"] for attempt in summary["attempts"]] == [3, 2, 3]
    assert [attempt["world"]["pods"] for attempt in summary["attempts"]][:2] == [
        ["node/0", "node/1", "node/2"],
        ["node/0", "node/2"],
    ]


def test_a_surplus_node_takes_the_place_of_a_lost_one_and_the_size_stays(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = elastic(gang, [2, 4], patience="3s")
    for pod in range(3):
        run.start(pod)
    first = started(run, 1, 2)
    (lost,) = set(first) - {0}
    (other,) = {1, 2} - set(first)
    run.agents[lost].kill()

    assert set(started(run, 2, 2)) == {0, other}
    sizes = [attempt["world"]["size"] for attempt in end_well(run, tmp_path)["attempts"]]
    assert sizes == [2, 2]


def test_a_program_without_checkpoints_stays_on_its_nodes(gang: Callable[..., Gang], tmp_path: Path) -> None:
    program = TRAINS.replace('os.environ["RANK"] == "0"', "False")
    capacity = {"patience": "1s"}
    run = gang(sys.executable, "-c", program, nodes=[1, 2], started=0, capacity=capacity)
    run.plan |= {"replaces_nodes": True}
    run.start(0)
    started(run, 1, 1)
    run.start(1)
    run.until("the other node", lambda: any(event.kind == "joined" for event in run.events()))

    assert len(end_well(run, tmp_path)["attempts"]) == 1


def test_the_next_agent_of_node_0_goes_on_with_those_that_are_left(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = elastic(gang, [1, 2, 3])
    for pod in range(3):
        run.start(pod)
    started(run, 1, 3)
    run.agents[2].kill()
    started(run, 2, 2)
    run.agents[0].kill()
    run.agents[0].wait(LIMIT)
    run.start(0, restart_count=1)

    run.until("the third attempt", lambda: any("of 3 2 1 3" in text for text in run.texts(0, 1)))
    summary = end_well(run, tmp_path)
    assert [attempt["world"]["size"] for attempt in summary["attempts"]] == [3, 2, 2]


def test_a_machine_that_fails_its_check_is_avoided_while_others_work(
    gang: Callable[..., Gang], broken: Path, tmp_path: Path
) -> None:
    """Else each attempt would end with the check of that machine, whose next pod gets it again, and none begin."""
    broken.write_text("machine-1\n")
    run = elastic(gang, [1, 2], "5s", resources={"gpu": 1})
    for pod in (0, 1):
        run.start(pod)
    assert run.agents[1].wait(LIMIT) == protocol.INTERRUPTED
    folder, reason = str(run.paths.folder), "0 of 1 GPUs visible: No devices"
    run.until("machine-1 is avoided", lambda: avoided_machines(folder) == {"machine-1": reason})
    started(run, 1, 1)
    run.start(1, restart_count=1)
    says = f"this pod does not get ready: {reason}"
    run.until("the next one stands by", lambda: says in (run.folder / "output-1-1").read_text())
    summary = end_well(run, tmp_path)
    assert [(attempt["cause"], attempt["world"]["size"]) for attempt in summary["attempts"]] == [("succeeded", 1)]


def test_a_node_that_is_unfit_is_that_of_its_machine_also_where_places_change_then(tmp_path: Path) -> None:
    """Else the run would avoid another machine, which is well."""
    plan: Any = {"hosts": ["a", "b", "c"], "roles": [], "elastic": {"sizes": [1, 2], "patience": 0.0}}
    plan["limits"] = {"start": 600.0}
    context = AgentContext(plan, COORDINATOR, 0, None, mounts_below(str(tmp_path)), SetClock())
    members = ElasticCoordinator(Channel(identity(), 0, context.clock), context, 1, Record(str(tmp_path)), False)
    try:
        for number, name in ((1, "sick"), (2, "well")):
            node = Member(NODE, number)
            connection: Any = SimpleNamespace(lost=False, closed=True, register=lambda selector: False)
            connection.close = connection.finish = lambda: None
            members.workers[node], members.machines[node] = connection, {"name": name, "member": node.text}
        avoided: list[tuple[str, str]] = []
        members.avoid = lambda machine, reason: avoided.append((machine, reason))
        members._handle(members.workers[Member(NODE, 1)], {"notice": "GPU 0 is broken", "unfit": 1})
        members.ready.add(Member(NODE, 2))
        members.serve(0.0)
        assert members.machines[Member(NODE, 1)]["name"] == "well", "it is the node of the attempt now"
        assert avoided == [("sick", "GPU 0 is broken")] and not members.unfit
    finally:
        members.close()
