"""The reclaim matrix: whatever is taken from a run on two pods, it ends with the parameters of an undisturbed one.

Phases are proved by the attempt records in the run folder. `start` is the start of the second attempt, so that there
is something to resume from; `write` is the writing of a checkpoint, in which rank 0 is frozen until it is struck.
In full for node 0 and node 1 during training, one representative for each of the other cells. By day
test_endurance.py has faults during training.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.agent.outcomes import FAILURE
from spotmpi.agent.plan import COORDINATOR, NODE, STANDBY, Member
from spotmpi.core import names
from tests.cluster.faults import KINDS, Injector
from tests.cluster.runs import FollowedRun, Runs, digits, local_events, parameters
from tests.testbed.cluster import Cluster
from tests.testbed.faults import Fault, stopped
from tests.testbed.node import Node
from tests.testbed.waiting import wait_for
from tests.tools import IS_OLDEST

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(400)]

EPOCHS = 6  # of 22 iterations
STRUCK_AT = 20  # the iteration from which faults come
ENOUGH = 240.0  # seconds for a run with a fault, on a busy machine


TRAINING = [
    *(Fault(how, node) for node in (0, 1) for how in ("evict", "delete", "force", "agent")),
    Fault("rank", 0),
    Fault("kill", 1),
    Fault("launcher", 0),
]
START = [Fault("evict", 1), Fault("agent", 0), Fault("launcher", 0)]
WRITE = [Fault("rank", 0), Fault("agent", 0), Fault("delete", 1)]


def each(faults: list[Fault], every_day: set[Fault]) -> pytest.MarkDecorator:
    """One test a fault: those of *every_day* always, the rest of the matrix at night."""
    at_night = pytest.mark.nightly("half a minute a cell")
    cells = [
        pytest.param(fault, marks=[] if fault in every_day else at_night, id=f"{fault.kind}-{fault.node}")
        for fault in faults
    ]
    return pytest.mark.parametrize("fault", cells)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checksum of the final parameters of the same work without a fault, on this machine."""
    return parameters(local_events(digits(EPOCHS), tmp_path_factory.mktemp("undisturbed")))


def training(runs: Runs, every: str = "1s", **more: Any) -> FollowedRun:
    return runs.start(digits(EPOCHS, checkpoint={"every": every}, limits={"failures": 1}, **more))


def wait_for_checkpoint(run: FollowedRun) -> int:
    """Wait until a run is beyond the iteration of faults and has a whole checkpoint; give how many events that took."""
    run.until_iteration(STRUCK_AT)
    run.until("a checkpoint", lambda event: event.values.get("kind") == "checkpoint")
    return len(run.events)


def held(run: FollowedRun) -> contextlib.AbstractContextManager[None]:
    """Stop the rank on node 1, and so all of them, that the run is not at its end before its fault comes."""
    return stopped(run.rank(1))


def inject_fault(run: FollowedRun, fault: Fault) -> None:
    """Cause the fault."""
    Injector(run).inject(fault)


def counts(fault: Fault) -> str:
    """As what a fault counts."""
    return FAILURE if fault.kind == "kill" else str(KINDS[fault.kind].counts)


def attempts(run: FollowedRun) -> list[dict[str, Any]]:
    """The records of all attempts in the run folder, in order; an attempt whose agent was killed has none."""
    folders = sorted((run.folder / "attempts").iterdir(), key=lambda path: int(path.name))
    return [
        json.loads(path.read_text()) if (path := folder / "node-0.json").exists() else {"cause": None}
        for folder in folders
    ]


def judge(run: FollowedRun, checksum: str, fault: Fault, faulty_attempt: int) -> None:
    """Check the guarantees for a run with a fault in its attempt number *faulty_attempt*."""
    end = run.end(ENOUGH)
    assert end.kind == "succeeded", run.recent_events()
    summary = run.summary()
    before, after = summary["attempts"][faulty_attempt - 1], summary["attempts"][faulty_attempt]
    assert before["cause"] == counts(fault), before["reason"]
    causes = [each["cause"] for each in summary["attempts"]]
    assert (summary["failures"], summary["interruptions"]) == (causes.count("failure"), causes.count("interruption"))
    assert len(summary["attempts"]) == faulty_attempt + 1, [each["reason"] for each in summary["attempts"]]
    assert after["resumed_iteration"] and after["resumed_iteration"] > 0, summary["attempts"]
    assert after["first_iteration"] == after["resumed_iteration"] + 1, summary["attempts"]
    assert parameters(run.events) == checksum
    assert run.runs.backend.state(run.id).state == "succeeded"
    run.runs.backend.stop(run.id, "seen", now=True)
    run.wait_until_gone()


@each(TRAINING, set())
def test_a_fault_during_training_does_not_change_the_final_parameters(
    runs: Runs, undisturbed: str, fault: Fault
) -> None:
    run = training(runs)
    observed = wait_for_checkpoint(run)
    with held(run):
        pods = [run.pod(node)["metadata"]["uid"] for node in (0, 1)]
        inject_fault(run, fault)

    run.until_attempt(2, observed)
    new = [node for node in (0, 1) if run.pod(node)["metadata"]["uid"] != pods[node]]
    assert new == ([] if counts(fault) == FAILURE else [fault.node]), "a lost node costs its own pod alone"
    first = attempts(run)[0]
    if fault.kind not in ("agent", "force") or fault.node:  # no agent is left to write that record
        assert first["first_iteration"] == 1 and STRUCK_AT <= first["last_iteration"] < EPOCHS * 22, first
        assert not first["result"]
    judge(run, undisturbed, fault, 1)


@pytest.mark.skipif(IS_OLDEST, reason="JobSet replaces single pods since 0.12")
def test_a_pod_that_stands_by_takes_over_the_node_of_a_lost_one(runs: Runs, undisturbed: str) -> None:
    run = training(runs, standby=1)
    observed = wait_for_checkpoint(run)
    members = [COORDINATOR, Member(NODE, 1), Member(STANDBY, 0)]
    with held(run):
        joined = run.until_kind(record.JOINED)
        assert joined.values["standby"] == names.standby_host(run.id, 0)
        pods = [run.pod(member)["metadata"]["uid"] for member in members]
        inject_fault(run, Fault("force", 1))

    promoted = run.until_kind(record.PROMOTED, observed).values
    lost = names.pod_host(run.id, 1, job_per_node=True)
    assert (promoted["node"], promoted["standby"], promoted["replaces"]) == (1, joined.values["standby"], lost)
    run.until_attempt(2, observed)
    run.wait_for_next_pod(1, pods[1])
    assert [run.pod(member)["metadata"]["uid"] for member in members[::2]] == pods[::2]
    judge(run, undisturbed, Fault("force", 1), 1)
    assert [each["world"]["pods"] for each in run.summary()["attempts"]] == [
        ["node/0", "node/1"],
        ["node/0", "standby/0"],
    ]


@pytest.mark.nightly("half a minute; what an older JobSet does")
def test_where_jobset_cannot_restart_single_jobs_a_lost_node_costs_all_pods(runs: Runs, undisturbed: str) -> None:
    with runs.testbed.jobset.without_restarting_jobs():
        run = training(runs)
        observed = wait_for_checkpoint(run)
        pods = {run.pod(node)["metadata"]["uid"] for node in (0, 1)}
        inject_fault(run, Fault("evict", 1))
        run.until_attempt(2, observed)
        assert not pods & {run.pod(node)["metadata"]["uid"] for node in (0, 1)}
        judge(run, undisturbed, Fault("evict", 1), 1)


@each([Fault("evict", 0), Fault("delete", 1)], {Fault("delete", 1)})
def test_notice_costs_no_iteration(runs: Runs, undisturbed: str, fault: Fault) -> None:
    run = training(runs, every="10m")
    run.until_iteration(STRUCK_AT)
    inject_fault(run, fault)

    judge(run, undisturbed, fault, 1)
    first, second = attempts(run)
    # Not every iteration is reported, so the checkpoint may be newer than the last report.
    assert first["last_iteration"] <= first["checkpoint_iteration"] == second["resumed_iteration"]
    assert second["lost_iterations"] == 0


@contextlib.contextmanager
def no_new_ranks(run: FollowedRun) -> Iterator[None]:
    """Let attempts after the first one wait for their rank on node 1, whose fork server stands still."""
    wait_for("the end of attempt 1", (run.folder / "attempts" / "1" / "node-0.json").exists, ENOUGH)
    with stopped(run.fork_server(1)):
        assert not (run.folder / "attempts" / "2").exists(), "the fork server was stopped too late"
        yield


@each(START, set())
def test_a_run_with_a_fault_at_the_start_of_an_attempt_starts_again(runs: Runs, undisturbed: str, fault: Fault) -> None:
    run = training(runs)
    observed = wait_for_checkpoint(run)
    inject_fault(run, Fault("evict", 0))
    with no_new_ranks(run):
        run.until_attempt(2, observed)
        inject_fault(run, fault)
        run.until_attempt(3, observed)

    # An agent that was killed leaves no record: the output of its program shows whether the fault came at the start.
    metrics = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    reported = [each for each in metrics if each["attempt"] == 2 and each["kind"] in ("metric", "result")]
    assert not reported, f"struck too late, the second attempt was on its way: {reported[-1]}"
    judge(run, undisturbed, fault, 2)


def state_of(process: int) -> str:
    """The kernel's letter for a process's state: T stopped, D waiting for a disk; X gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


@contextlib.contextmanager
def frozen_in_a_write(run: FollowedRun) -> Iterator[int]:
    """Freeze rank 0 while it writes a checkpoint after a whole one; give the iteration of that checkpoint.

    It looks at the files alone: on a busy machine the run may have ended before its follower shows that it trains.
    """
    rank = run.rank(0)
    folder = run.folder / "checkpoints"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(folder.glob(".writing-*")) or not any(folder.glob("iteration-*")):
            continue
        os.kill(rank, signal.SIGSTOP)
        # Until it stands still a rename that has begun may still come to its end.
        wait_for("rank 0 stands still", lambda: state_of(rank) in "TX")
        caught = [path for path in folder.glob(".writing-*") if path.exists() and not (path / "manifest.json").exists()]
        if caught:
            yield int(caught[0].name.split("-")[1])
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)
            return
        os.kill(rank, signal.SIGCONT)
    pytest.fail("no checkpoint was caught half written")


@each(WRITE, set())
def test_an_incomplete_checkpoint_is_not_used(runs: Runs, undisturbed: str, fault: Fault) -> None:
    run = training(runs, every="0.3s")
    with frozen_in_a_write(run) as path:
        inject_fault(run, fault)
        if fault.kind != "delete":
            time.sleep(0.5)

    judge(run, undisturbed, fault, 1)
    second = attempts(run)[1]
    if fault.kind == "delete":  # with notice, the write comes to its end
        assert second["resumed_iteration"] >= path
    else:
        assert second["resumed_iteration"] < path
        assert any(f"incomplete checkpoint .writing-{path:09d}" in line for line in run.lines())


@pytest.mark.nightly("half a minute; by day a double of sshd is killed")
def test_an_sshd_that_is_killed_costs_nothing_and_is_there_for_the_next_attempt(runs: Runs, undisturbed: str) -> None:
    run = training(runs)
    observed = wait_for_checkpoint(run)
    with held(run):
        for node in (0, 1):
            inject_fault(run, Fault("sshd", node))
        time.sleep(3)
        assert record.RESTARTED not in run.kinds()
        inject_fault(run, Fault("kill", 1))
    run.until_attempt(2, observed)
    judge(run, undisturbed, Fault("kill", 1), 1)


@pytest.mark.nightly("half a minute; nothing happens to a run while a kubelet is away")
def test_a_kubelet_that_stops_and_starts_costs_nothing(runs: Runs, undisturbed: str) -> None:
    run = training(runs)
    wait_for_checkpoint(run)
    node = runs.testbed.node(run.pod(0)["spec"]["nodeName"])
    with held(run):
        node.stop_kubelet()
        try:
            time.sleep(3)
        finally:
            node.start_kubelet()

    assert_undisturbed(run, undisturbed)


def assert_undisturbed(run: FollowedRun, checksum: str) -> None:
    """Check a run of one attempt whose follower gave every metric and line of the run folder, once and in order."""
    assert run.end(ENOUGH).kind == "succeeded", run.recent_events()
    assert run.kinds() == ["submitted", "started", "succeeded"]
    assert parameters(run.events) == checksum
    metrics = [json.loads(line)["t"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    lines = sum(len(path.read_text().splitlines()) for path in (run.folder / "logs").glob("*/*.log"))
    assert [event.time for event in run.events if event.kind == record.METRIC] == metrics
    numbers = [(event.attempt, event.member, event.number) for event in run.events if event.kind == record.LINE]
    assert len(numbers) == lines and len(set(numbers)) == lines


@pytest.mark.nightly("waits a minute and a half for the node to be known as gone")
def test_a_dead_node_delays_a_run_until_its_object_is_deleted(runs: Runs, undisturbed: str) -> None:
    run = training(runs, kubernetes={"exclusive": True})
    observed = wait_for_checkpoint(run)
    node = runs.testbed.node(run.pod(1)["spec"]["nodeName"])
    node.stop_kubelet()
    node.kill_containers()
    try:
        interrupted = run.until_kind(record.INTERRUPTED, observed)
        assert "lost" in str(interrupted.reason)
        wait_for("the node is known to be gone", lambda: not ready(node, runs.testbed), 120)
        run.until_reason(f"kubectl delete node {node.name}", after=observed)
        node.delete()
        judge(run, undisturbed, Fault("agent", 1), 1)
    finally:
        node.start_kubelet()


def ready(node: Node, testbed: Cluster) -> bool:
    conditions = testbed.get("node", node.name)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@pytest.mark.nightly("half a minute without an API server")
def test_a_follower_loses_nothing_while_the_api_server_is_down_for_half_a_minute(runs: Runs, undisturbed: str) -> None:
    run = training(runs)
    run.until_iteration(STRUCK_AT)
    with runs.testbed.plane.without_api_server():
        time.sleep(30)

    assert_undisturbed(run, undisturbed)
