"""Agents of pods that stand by, as processes of this machine: they take the places of lost ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import network, protocol, worker
from spotmpi.agent.checkpoint_files import newest_iteration
from spotmpi.agent.context import AgentContext, Mounts
from spotmpi.agent.plan import NODE, STANDBY, Member
from spotmpi.agent.stop_requests import PreemptionNotice
from spotmpi.agent.worker import VACATE_AFTER, VACATE_NEXT_AFTER
from tests.clocks import SetClock
from tests.contract.processes import are_gone, wait_until
from tests.unit.agent.gang import LIMIT, Gang, end_well, kinds

# Rank 0 computes each state from the last one, as training does its parameters.
TRAINS = """
import hashlib, os, sys, time, spotmpi
rank = os.environ["RANK"]
print(os.environ["SPOTMPI_ATTEMPT"], os.getpid(), flush=True)
found = spotmpi.checkpoint.load(broadcast=lambda value: value) if rank == "0" else None
iteration, text = found or (0, "")
while not os.path.exists("enough"):
    iteration += 1
    text = hashlib.sha256((text + rank + str(iteration)).encode()).hexdigest()
    if rank == "0":
        spotmpi.checkpoint.save(iteration, text)
        print('{"spotmpi":"metric","iteration":%d}' % iteration, flush=True)
    time.sleep(0.03)
print("parameters", iteration, text, flush=True)
"""
WAITS = """
echo $SPOTMPI_ATTEMPT $RANK $$
while [ ! -e enough ]; do sleep 0.1; done
"""


def started(
    gang: Callable[..., Gang],
    *command: str,
    nodes: int = 3,
    standby: int = 1,
    is_ready: bool = True,
    **values: Any,
) -> Gang:
    """A run whose pods that stand by are ready, or not there yet."""
    run = gang(*command, nodes=nodes, started=0, **values)
    run.plan |= {"replaces_nodes": True, "standby": ["127.0.0.1"] * standby, "margin": 30.0}
    for node in range(nodes):
        run.start(node)
    for node in range(nodes):
        run.printed_by(node, "1 ")
    if not is_ready:
        return run
    for pod in range(nodes, nodes + standby):
        run.start(pod)
    run.until("standby", lambda: kinds(run.events()).count("joined") == standby)
    return run


def events(run: Gang, kind: str) -> list[dict[str, Any]]:
    return [event.values for event in run.events() if event.kind == kind]


def test_a_pod_that_stands_by_takes_the_place_of_a_lost_one_whose_next_pod_stands_by(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = started(gang, "sh", "-c", WAITS)
    assert run.texts(3) == [], "it starts nothing"
    ranks = [int(run.texts(node)[0].split()[2]) for node in range(3)]
    run.agents[1].kill()

    run.printed_by(3, "2 1 ")
    for node in (0, 2):
        run.printed_by(node, f"2 {node} ")
    wait_until(lambda: are_gone(ranks))
    run.until("the promotion", lambda: events(run, "promoted"))
    (promoted,) = events(run, "promoted")
    assert (promoted["node"], promoted["standby"], promoted["replaces"]) == (1, "127.0.0.1", "127.0.0.1")
    assert 0 <= promoted["seconds"] < LIMIT

    run.start(1, restart_count=1)  # JobSet's replacement
    run.until("the next to stand by", lambda: len(events(run, "joined")) >= 2)
    assert run.texts(1, restart_count=1) == []
    run.agents[3].kill()
    run.printed_by(1, "3 1 ", restart_count=1)

    summary = end_well(run, tmp_path)
    assert (summary["failures"], summary["interruptions"]) == (0, 2)
    assert [attempt["world"]["pods"] for attempt in summary["attempts"]] == [
        ["node/0", "node/1", "node/2"],
        ["node/0", "standby/0", "node/2"],
        ["node/0", "node/1", "node/2"],
    ]


def test_results_are_those_of_a_run_without_a_loss(gang: Callable[..., Gang], tmp_path: Path) -> None:
    memory = {"memory": "1", "every": "1h"}
    run = started(gang, sys.executable, "-c", TRAINS, checkpoint=memory)
    copy = tmp_path / "node-1" / "spotmpi" / "memory" / "checkpoints"
    run.until("a copy on node 1", lambda: newest_iteration(str(copy)) >= 5)
    run.agents[1].kill()
    run.printed_by(3, "2 ")
    promoted = tmp_path / "node-3" / "spotmpi" / "memory" / "checkpoints"
    run.until("a copy on the promoted pod", lambda: newest_iteration(str(promoted)) >= 10)

    # Node 0 is lost with its memory: its next agent asks the pod that is node 1 now.
    run.agents[0].kill()
    run.agents[0].wait(LIMIT)
    shutil.rmtree(tmp_path / "node-0" / "spotmpi" / "memory" / "checkpoints")
    run.start(0, restart_count=1)
    run.until("the third attempt", lambda: any(text.startswith("3 ") for text in run.texts(0, 1)))
    (tmp_path / "enough").touch()
    assert run.agents[0].wait(LIMIT) == 0

    third = json.loads(run.paths.summary.read_text())["attempts"][2]
    assert third["world"]["pods"] == ["node/0", "standby/0", "node/2"] and third["resumed_iteration"] >= 10
    (_, last, parameters) = run.texts(0, 1)[-1].split()
    text = ""
    for iteration in range(1, int(last) + 1):
        text = hashlib.sha256((text + "0" + str(iteration)).encode()).hexdigest()
    assert parameters == text


def metrics(run: Gang) -> dict[int, list[int]]:
    """The iterations that each attempt has reported."""
    found: dict[int, list[int]] = {}
    path = run.paths.metrics
    for line in path.read_text().splitlines() if path.exists() else ():
        values = json.loads(line)
        if values["kind"] == protocol.METRIC:
            found.setdefault(values["attempt"], []).append(values["iteration"])
    return found


def test_training_goes_on_after_a_notice_until_a_pod_stands_by(gang: Callable[..., Gang], tmp_path: Path) -> None:
    memory = {"memory": "1", "every": "1h"}
    run = started(gang, sys.executable, "-c", TRAINS, nodes=2, is_ready=False, checkpoint=memory)
    run.until("iterations", lambda: len(metrics(run).get(1, ())) > 5)
    run.agents[1].send_signal(signal.SIGTERM)
    text = "node 1: the pod of this node received SIGTERM; training goes on for 30 s (checkpoint.grace less "
    run.printed_by(0, text + "checkpoint.margin) or until a pod stands by that takes its place")
    before = metrics(run)[1][-1]
    run.until("more iterations", lambda: metrics(run)[1][-1] > before + 20)
    assert "interrupted" not in kinds(run.events()) and run.agents[1].poll() is None
    run.start(2)
    # JobSet starts the next pod once the one with notice has ended, which it does as soon as nobody needs it.
    assert run.agents[1].wait(LIMIT) == protocol.INTERRUPTED
    run.start(1, restart_count=1)
    run.until("the next attempt", lambda: 2 in metrics(run))

    summary = end_well(run, tmp_path)
    first, second = summary["attempts"]
    assert (summary["failures"], summary["interruptions"]) == (0, 1)
    assert second["world"]["pods"] == ["node/0", "standby/0"]
    assert first["reason"].startswith("node 1: ")
    # Rank 0 trains on after its checkpoint until it is killed, maybe between the copy in memory and the line about it.
    assert second["lost_iterations"] <= 1 and 0 <= metrics(run)[2][0] - metrics(run)[1][-1] <= 2
    assert first["last_iteration"] > before + 20


def test_the_loss_of_a_pod_that_stands_by_costs_nothing(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = started(gang, "sh", "-c", WAITS, nodes=2)
    run.agents[2].kill()
    run.until("the loss", lambda: events(run, "left"))
    run.start(2, restart_count=1)
    run.until("the next", lambda: len(events(run, "joined")) == 2)
    run.agents[2].send_signal(signal.SIGTERM)
    assert run.agents[2].wait(LIMIT) == protocol.INTERRUPTED
    run.until("its notice", lambda: len(events(run, "left")) == 2)

    summary = end_well(run, tmp_path)
    assert len(summary["attempts"]) == 1


def test_a_pod_that_cannot_get_ready_does_not_stand_by(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang("sh", "-c", WAITS, started=0, resources={"gpu": 1})
    run.plan |= {"replaces_nodes": True, "standby": ["127.0.0.1"]}
    for node in (0, 1):
        run.start(node)
    run.printed_by(1, "1 1 ")
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "image.json").write_text(json.dumps({"python": "3.11"}))
    run.start(2)
    run.until("the reason", lambda: any("cannot stand by: " in text for text in run.texts(0)))

    run.agents[1].kill()
    run.until("a wait", lambda: any("hosts are not ready yet" in str(each.reason) for each in run.events()))
    run.start(1, restart_count=1)
    run.printed_by(1, "2 1 ", restart_count=1)
    assert events(run, "promoted") == []
    end_well(run, tmp_path)


def test_a_pod_that_stands_by_takes_over_from_a_node_that_fails_its_check_and_the_next_pod_there_stays_away(
    gang: Callable[..., Gang], tmp_path: Path, broken: Path
) -> None:
    run = started(gang, "sh", "-c", WAITS, resources={"gpu": 1}, limits={"failures": 5})
    broken.write_text("machine-1\n")
    os.kill(int(run.texts(2)[0].split()[2]), signal.SIGKILL)  # another attempt, in the same pods
    assert run.agents[1].wait(LIMIT) == protocol.INTERRUPTED
    run.printed_by(3, "3 1 ")
    run.start(1, restart_count=1)  # on the same machine
    text = "this pod does not get ready: 0 of 1 GPUs visible: No devices"
    wait_until(lambda: text in (tmp_path / "output-1-1").read_text())

    summary = end_well(run, tmp_path)
    assert (summary["failures"], summary["interruptions"]) == (1, 1)
    assert [attempt["world"].get("pods") for attempt in summary["attempts"]] == [
        ["node/0", "node/1", "node/2"],
        None,
        ["node/0", "standby/0", "node/2"],
    ]
    assert [each["machine"] for each in events(run, "avoided")] == ["machine-1"]
    assert {each["machine"]["name"] for each in events(run, "joined")} == {"machine-3"}


class Away:
    """A transport that finds no node 0."""

    def join(self, context: Any, greeting: Any) -> str:
        return "run-0: Name or service not known"


@pytest.mark.parametrize(
    ("member", "standby", "addressless", "left"),
    [
        (Member(STANDBY, 0), 1, (0.0, 99.0), VACATE_AFTER),
        (Member(STANDBY, 1), 2, (0.0, 99.0), VACATE_AFTER + VACATE_NEXT_AFTER),
        (Member(STANDBY, 0), 1, (20.0, 99.0), 20.0 + VACATE_AFTER),
        (Member(STANDBY, 1), 2, (0.0, VACATE_AFTER + 5.0), None),
        (Member(NODE, 1), 1, (0.0, 99.0), None),
        (Member(STANDBY, 0), 0, (0.0, 99.0), None),
    ],
    ids=["it leaves", "the second, later", "from the loss on", "the first was enough", "a node stays", "surplus"],
)
def test_a_pod_that_stands_by_makes_room_for_node_0_whose_next_pod_has_no_address(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    member: Member,
    standby: int,
    addressless: tuple[float, float],
    left: float | None,
) -> None:
    """The member is not what the pod was at the beginning. Surplus nodes are released by the placement controller."""
    clock, transport, (start, end) = SetClock(0.0), Away(), addressless
    monkeypatch.setattr(network, "has_no_address", lambda host: host == "run-0" and start <= clock.seconds <= end)
    plan: Any = {"hosts": ["run-0", "run-1"], "standby": ["other"] * standby}
    mounts = Mounts("", "", "", "", "")
    context = AgentContext(plan, Member(NODE, 1), 1, None, mounts, clock)
    notice = PreemptionNotice("the pod of this node", signals=())

    joined = worker.join_coordinator(context, transport, notice, 0.0, 60.0, member)  # type: ignore[arg-type]

    assert joined is None
    assert clock.seconds == pytest.approx(60.0 if left is None else left, abs=0.2)
    patience = VACATE_AFTER + VACATE_NEXT_AFTER * member.number
    said = f"node 0 has had no address for {patience:g} s: its next pod may need this machine"
    assert notice.reason == (None if left is None else said)
    assert (said in capsys.readouterr().err) == (left is not None)
