"""A run whose order of capacity names two node groups, on a cluster of these groups, with GPUs that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import STANDBY, Member
from spotmpi.agent.worker import VACATE_AFTER
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.core import names
from spotmpi.core.environment import Environment
from spotmpi.core.events import Event
from spotmpi.core.wording import duration
from spotmpi.plan.placement import PURPOSE
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import capacity_block
from tests.cluster.runs import FollowedRun, Runs, plain
from tests.testbed.cluster import Cluster
from tests.testbed.network import api_service
from tests.testbed.waiting import wait_for
from tests.unit.core.test_environment import OUTPUTS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LIMIT = 120.0
PATIENCE = 8.0
GROUP = "spotmpi.dev/group"
# Two nodes on one machine: each waits for a file of the run volume, which the test writes.
WAIT = ["sh", "-c", "while [ ! -e /spotmpi/volume/done ]; do sleep 0.2; done; echo over"]
# Fails in the first two attempts on the node that is its argument, each time after another iteration.
FAILING = """
case ${SPOTMPI_JOB_INDEX:-$JOB_COMPLETION_INDEX} in
    0) echo "{\\"spotmpi\\":\\"metric\\",\\"iteration\\":${SPOTMPI_ATTEMPT}0}";;
esac
reported="\\"iteration\\": ${SPOTMPI_ATTEMPT}0,"
until grep -qs "$reported" /spotmpi/volume/runs/$SPOTMPI_RUN/metrics.jsonl; do sleep 0.2; done
if [ $SPOTMPI_ATTEMPT -lt 3 ] && [ "$SPOTMPI_MACHINE" = "$1" ]; then exit 1; fi
while [ ! -e /spotmpi/volume/done ]; do sleep 0.2; done
"""


def environment(runs: Runs) -> Environment:
    """An environment with the groups `near` and `far`, each of like GPU nodes."""
    like = {**OUTPUTS["node_groups"][0], "vcpus": 8, "gpus": 2}
    groups = [{**like, "name": name, "labels": {GROUP: name}} for name in ("near", "far")]
    groups[1]["market"] = "on-demand"
    values = {**OUTPUTS, "namespace": runs.namespace, "node_groups": groups}
    return Environment.model_validate(values)


@pytest.fixture
def placed(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """Runs in an environment whose two groups have one node each."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    runs.backend = KubernetesBackend(tmp_path / "copies", None, runs.namespace, environment(runs))
    testbed = runs.testbed
    for node, group in zip(testbed.nodes, ("near", "far"), strict=True):
        testbed.kubectl("label", "node", node.name, f"{GROUP}={group}")
    try:
        with api_service(testbed.slot, testbed.plane):
            yield runs
    finally:
        for node in testbed.nodes:
            testbed.kubectl("uncordon", node.name)
            testbed.kubectl("label", "node", node.name, f"{GROUP}-")
            node.set_gpus(0)


def spec(**more: Any) -> dict[str, Any]:
    kubernetes = {"exclusive": False}
    capacity = {"order": ["near", "on-demand"], "patience": f"{PATIENCE:g}s"}
    resources = {"gpu": 1, "cpu": "100m"}
    return plain(*WAIT, nodes=2, resources=resources, capacity=capacity, price=1.5, kubernetes=kubernetes, **more)


def places(runs: Runs, run: str) -> list[str | None]:
    """The node of each pod of a run, by index."""
    listed = runs.testbed.get("pods", "-n", runs.namespace, "-l", f"{names.LABEL_RUN}={run}")["items"]
    return [each["spec"].get("nodeName") for each in listed if not each["metadata"].get("deletionTimestamp")]


def kill_controller(testbed: Cluster, runs: Runs) -> None:
    selector = f"{LABEL_PURPOSE}={PURPOSE}"
    testbed.kubectl("delete", "pods", "-n", runs.namespace, "-l", selector, "--grace-period=0", "--force")


def wait_until_all_on(runs: Runs, run: str, node: str) -> None:
    wait_for(f"both pods on {node}", lambda: places(runs, run) == [node, node], LIMIT)


@pytest.mark.pod_images("base")
def test_a_gang_moves_as_a_whole_while_no_terminal_follows_it_and_goes_back_only_when_it_lost_a_node(
    placed: Runs, tmp_path: Path
) -> None:
    testbed = placed.testbed
    near, far = testbed.nodes
    near.set_gpus(1)
    far.set_gpus(2)
    run = placed.submit(spec(), image="base")
    wait_for("half of the gang", lambda: near.name in places(placed, run), LIMIT)
    assert far.name not in places(placed, run)
    kill_controller(testbed, placed)
    wait_until_all_on(placed, run, far.name)

    near.set_gpus(2)
    time.sleep(PATIENCE)  # capacity comes back, and nobody moves a run that has all its nodes
    assert places(placed, run) == [far.name, far.name]
    far.set_gpus(0)
    testbed.evict(placed.pod(run, 1)["metadata"]["name"], placed.namespace)
    wait_until_all_on(placed, run, near.name)

    followed = FollowedRun(placed, run)
    followed.until_kind(record.STARTED)
    assert placed.volume is not None
    (placed.volume / "done").touch()
    assert followed.end().kind == "succeeded", followed.recent_events()
    placements = [event.values for event in followed.events if event.kind == record.PLACED]
    assert [(each["group"], each["market"], each["rate"]) for each in placements] == [
        ("near", "spot", 3.0),
        ("far", "on-demand", 3.0),
        ("near", "spot", 3.0),
    ], followed.recent_events()
    assert [each["reason"] for each in placements[:2]] == [
        "the first in the order of its node groups",
        f"near gave 1 of 2 nodes within {duration(PATIENCE)}",
    ]
    recorded = [line for line in (followed.folder / record.EVENTS).read_text().splitlines() if '"placed"' in line]
    assert len(recorded) == 3, recorded
    summary = followed.summary()
    assert summary["attempts"][-1]["world"]["rate"] == 3.0 and summary["hardware"][0]["node_group"] == "near"


@pytest.mark.pod_images("base")
def test_a_machine_that_was_at_fault_for_two_failures_gets_no_pod_of_the_run_any_more(placed: Runs) -> None:
    """The scheduler would take it: it has as many free GPUs as the other node of its group."""
    testbed = placed.testbed
    bad, good = testbed.nodes
    testbed.kubectl("label", "node", good.name, f"{GROUP}=near", "--overwrite")
    bad.set_gpus(2)
    values = spec(limits={"failures": 5})
    values["command"] = ["sh", "-c", FAILING, "sh", bad.name]
    values["capacity"]["patience"] = "10m"
    run = placed.start(values, image="base")
    run.until_kind(record.AVOIDED)
    good.set_gpus(2)

    def is_on_good(event: Event) -> bool:
        machines = event.values.get("machines") or []
        return event.kind == record.STARTED and [each["name"] for each in machines] == [good.name] * 2

    run.until("an attempt on the other machine", is_on_good)
    assert places(placed, run.id) == [good.name] * 2
    observed = len(run.events)
    testbed.evict(placed.pod(run.id, 1)["metadata"]["name"], placed.namespace)
    run.until("an attempt with another pod", is_on_good, observed)
    assert places(placed, run.id) == [good.name] * 2
    assert placed.volume is not None
    (placed.volume / "done").touch()
    assert run.end().kind == "succeeded", run.recent_events()
    fault = "attempts 1 and 2 failed there, after different iterations"
    assert placed.backend.state(run.id).avoided == {bad.name: fault}
    reasons = [event.values["reason"] for event in run.events if event.kind == record.PLACED]
    assert reasons[1:] == [f"{bad.name} is at fault again, and the run goes on without"]


@pytest.mark.nightly("a minute; the unit tier decides what moves a gang with a pod that stands by")
@pytest.mark.pod_images("base")
def test_a_pod_that_stands_by_takes_over_where_the_gang_is_and_moves_with_it(placed: Runs) -> None:
    testbed = placed.testbed
    near, far = testbed.nodes
    near.set_gpus(3)
    far.set_gpus(3)
    run = placed.start(spec(standby=1), image="base")
    run.until_kind(record.JOINED)
    observed = len(run.events)
    near.set_gpus(2)
    lost = placed.pod(run.id, 1)["metadata"]["name"]
    testbed.kubectl("delete", "pod", lost, "-n", placed.namespace, "--grace-period=0", "--force")
    run.until_kind(record.PROMOTED, observed)
    run.until_attempt(2, observed)
    time.sleep(PATIENCE + 6)
    assert sorted(places(placed, run.id), key=str) == [None, near.name, near.name], "no move while all nodes are there"

    near.set_gpus(1)
    promoted = placed.pod(run.id, Member(STANDBY, 0))["metadata"]["name"]
    testbed.kubectl("delete", "pod", promoted, "-n", placed.namespace, "--grace-period=0", "--force")
    wait_for(f"all pods on {far.name}", lambda: places(placed, run.id) == [far.name] * 3, LIMIT)
    # One that waited for the lost node may have begun before.
    run.until("an attempt", lambda event: event.kind == record.STARTED and (event.attempt or 0) >= 3, observed)
    assert placed.volume is not None
    (placed.volume / "done").touch()
    assert run.end().kind == "succeeded", run.recent_events()
    placements = [event.values for event in run.events if event.kind == record.PLACED]
    assert [(each["group"], each["rate"]) for each in placements] == [("near", 4.5), ("far", 4.5)], run.recent_events()
    assert placements[1]["reason"] == f"near gave 1 of 2 nodes within {duration(PATIENCE)}"
    worlds = [each["world"].get("pods") for each in run.summary()["attempts"]]
    assert worlds[:2] == [["node/0", "node/1"], ["node/0", "standby/0"]], worlds


@pytest.mark.nightly("a minute; the unit tier decides when a pod that stands by makes room")
@pytest.mark.pod_images("base")
@pytest.mark.parametrize("promoted", [False, True], ids=["at the beginning", "after a promotion"])
def test_node_0_whose_machine_is_lost_gets_that_of_the_pod_that_stands_by(placed: Runs, promoted: bool) -> None:
    """After a promotion that is the next pod of another node, whose Job JobSet makes anew at once."""
    near, _ = placed.testbed.nodes
    near.set_gpus(3)
    values = spec(standby=1)
    values["kubernetes"]["node_groups"] = ["near"]
    del values["capacity"]
    run = placed.start(values, image="base")
    run.until_kind(record.JOINED)
    observed, last = len(run.events), 2

    def lose(node: int) -> None:
        name = placed.pod(run.id, node)["metadata"]["name"]
        placed.testbed.kubectl("delete", "pod", name, "-n", placed.namespace, "--grace-period=0", "--force")

    if promoted:
        lose(1)
        run.until_attempt(2, observed)
        run.until_kind(record.JOINED, observed)
        observed, last = len(run.events), 3
    other = placed.pod(run.id, Member(STANDBY, 0) if promoted else 1)["metadata"]["uid"]
    near.set_gpus(2)
    lose(0)
    began = time.monotonic()
    run.until_attempt(last, observed)
    seconds = time.monotonic() - began
    print(f"node 0 was lost for {seconds:.1f} s")
    assert VACATE_AFTER < seconds < VACATE_AFTER + LIMIT / 2
    now = placed.pod(run.id, Member(STANDBY, 0) if promoted else 1)["metadata"]["uid"]
    assert now == other, "the other node stays"

    near.set_gpus(3)
    run.until_kind(record.JOINED, observed)
    assert placed.volume is not None
    (placed.volume / "done").touch()
    assert run.end().kind == "succeeded", run.recent_events()
    summary = run.summary()
    assert [each["cause"] for each in summary["attempts"]] == ["interruption"] * (last - 1) + ["succeeded"]
    worlds = [each["world"]["pods"] for each in summary["attempts"]]
    assert worlds[-1] == ["node/0", "standby/0" if promoted else "node/1"]


@pytest.mark.nightly("half a minute of waiting, in which nothing moves")
@pytest.mark.pod_images("base")
def test_a_run_whose_controller_is_dead_goes_on_where_it_is(placed: Runs) -> None:
    testbed = placed.testbed
    near, far = testbed.nodes
    near.set_gpus(1)
    far.set_gpus(2)
    run = placed.start(spec(), image="base")
    testbed.kubectl("delete", "job", names.controller_name(run.id), "-n", placed.namespace, "--wait=false")
    run.until_kind(record.WAITING)
    time.sleep(PATIENCE + 6)
    assert near.name in places(placed, run.id) and far.name not in places(placed, run.id)
    near.set_gpus(2)
    run.until_kind(record.STARTED)
    assert placed.volume is not None
    (placed.volume / "done").touch()
    assert run.end().kind == "succeeded", run.recent_events()
    state = placed.backend.state(run.id)
    assert state.placement == {"group": "near", "type": "g4dn.xlarge", "market": "spot", "rate": 3.0}


@pytest.mark.nightly("a minute of waiting for the start and the end of a block")
@pytest.mark.pod_images("base")
def test_a_gang_has_no_pods_before_its_capacity_block_starts_and_leaves_it_before_its_end(
    placed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed, account = placed.testbed, FakeAccount()
    near, far = testbed.nodes
    near.set_gpus(2)
    far.set_gpus(2)
    values = environment(placed).model_dump()
    values["node_groups"][0].update(market="capacity-block", reservation="cr-0123456789abcdef0")
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    placed.backend = KubernetesBackend(placed.backend.runs_folder, None, placed.namespace, Environment(**values))
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=25)
    end = start + timedelta(seconds=1860 + 1 + 35)  # left after 35 s
    account.ec2.reservations = [capacity_block(StartDate=start, EndDate=end)]
    run = placed.submit(spec(checkpoint={"grace": 1}) | {"capacity": {"order": ["near", "far"]}}, image="base")
    while datetime.now(UTC) < start:
        assert places(placed, run) == []
        time.sleep(1)
    wait_until_all_on(placed, run, near.name)
    assert datetime.now(UTC) < start + timedelta(seconds=30)
    wait_until_all_on(placed, run, far.name)
    assert datetime.now(UTC) > start + timedelta(seconds=35)
    assert placed.volume is not None
    (placed.volume / "done").touch()
    followed = FollowedRun(placed, run)
    assert followed.end().kind == "succeeded", followed.recent_events()
    reasons = [event.values["reason"] for event in followed.events if event.kind == record.PLACED]
    assert [each.partition(" at ")[0] for each in reasons] == [
        "the first in the order of its node groups; waits for the Capacity Block cr-0123456789abcdef0, which starts",
        "the Capacity Block cr-0123456789abcdef0 ends",
    ]


# A start on spot nodes, its loss, and one on on-demand nodes are in time for 130 s: then it is no use to wait.
DEADLINE, OVERHEAD, TOTAL = 400.0, 120.0, 100
# A program that resumes: an iteration takes 0.3 s, and each is in a file of the run volume, its checkpoint.
RESUMES = """
import os, time
from spotmpi.agent import protocol

path = "/spotmpi/volume/iteration-" + (os.environ.get("SPOTMPI_JOB_INDEX") or os.environ["JOB_COMPLETION_INDEX"])
done = int(open(path).read()) if os.path.exists(path) else 0
print(protocol.encode("context", total_iterations=TOTAL), flush=True)
while done < TOTAL:
    time.sleep(0.3)
    done += 1
    with open(path + ".new", "w") as file:
        file.write(str(done))
    os.replace(path + ".new", path)  # killed in between, it has one or the other
    print(protocol.encode("metric", iteration=done), flush=True)
    print(protocol.encode("checkpoint", iteration=done), flush=True)
"""


@pytest.mark.pod_images("chainermn")
def test_a_run_with_a_deadline_whose_spot_nodes_vanish_ends_in_time_on_on_demand_nodes(
    placed: Runs, tmp_path: Path
) -> None:
    testbed = placed.testbed
    near, far = testbed.nodes
    capacity: dict[str, Any] = {"deadline": f"{DEADLINE:g}s", "work": f"{0.3 * TOTAL:g}s", "overhead": f"{OVERHEAD:g}s"}
    capacity |= {"patience": f"{PATIENCE:g}s", "prices": {"near": 0.5, "far": 20.0}}
    values = {
        **spec(),
        "command": ["python3", "-c", RESUMES.replace("TOTAL", str(TOTAL))],
        "capacity": capacity,
        "price": None,
    }
    values["resources"] = {"cpu": "100m"}  # the image has no CUDA
    run = placed.submit(values, image="chainermn")
    followed = FollowedRun(placed, run)
    followed.until("an iteration", lambda event: event.values.get("iteration", 0) >= 3)
    assert places(placed, run) == [near.name, near.name]
    testbed.kubectl("cordon", near.name)
    testbed.evict(placed.pod(run, 1)["metadata"]["name"], placed.namespace)
    followed.until("the decision to wait", lambda event: "waits: " in (event.reason or ""))
    kill_controller(testbed, placed)
    wait_for(f"both pods on {far.name}", lambda: places(placed, run) == [far.name, far.name], DEADLINE)
    assert followed.end().kind == "succeeded", followed.recent_events()
    submitted, ended = followed.events[0].time, followed.events[-1].time
    assert ended - submitted <= DEADLINE, followed.recent_events()
    events = [event for event in followed.events if event.kind == record.PLACED]
    decisions = [event.values for event in events]
    assert [(each["group"], each["market"], each["rate"]) for each in decisions] == [
        ("near", "spot", 1.0),
        ("near", "spot", 1.0),
        ("far", "on-demand", 40.0),
    ], followed.recent_events()
    assert "to the deadline" in decisions[2]["reason"]
    assert events[2].time > events[1].time + PATIENCE  # it waited for spot nodes as long as that was safe
    forecast = decisions[0]["forecast"]
    assert forecast["deadline"] == DEADLINE and forecast["in_time"] == 1.0
    summary = followed.summary()
    assert [each["world"]["rate"] for each in summary["attempts"]][-1] == 40.0 and summary["iteration"] == TOTAL
    assert summary["attempts"][0]["start"] > 0


@pytest.mark.pod_images("chainermn")
@pytest.mark.nightly("130 s; the unit tier decides when to go back, and the tests around it move a gang")
def test_a_run_that_fell_back_to_on_demand_nodes_goes_back_to_spot_nodes_at_a_checkpoint(placed: Runs) -> None:
    testbed, total = placed.testbed, 350
    near, far = testbed.nodes
    capacity = {"order": ["near", "on-demand"], "patience": f"{PATIENCE:g}s", "retry": "10s", "overhead": "1s"}
    command = ["python3", "-c", RESUMES.replace("TOTAL", str(total))]
    values = {
        **spec(),
        "command": command,
        "capacity": {**capacity, "prices": {"near": 0.5, "far": 20.0}},
        "price": None,
    }
    values["resources"] = {"cpu": "100m"}  # the image has no CUDA
    testbed.kubectl("cordon", near.name)
    run = placed.submit(values, image="chainermn")
    followed = FollowedRun(placed, run)
    followed.until("an iteration", lambda event: event.values.get("iteration", 0) >= 3)
    assert places(placed, run) == [far.name, far.name]
    testbed.kubectl("uncordon", near.name)
    wait_until_all_on(placed, run, near.name)
    assert followed.end(2 * LIMIT).kind == "succeeded", followed.recent_events()
    decisions = [event.values for event in followed.events if event.kind == record.PLACED]
    assert [(each["group"], each["rate"]) for each in decisions] == [("near", 1.0), ("far", 40.0), ("near", 1.0)]
    assert decisions[2]["reason"].startswith("back to spot nodes, at a checkpoint: $1.00 instead of $40.00 per hour")
    summary = followed.summary()
    assert summary["iteration"] == total and len(summary["attempts"]) == 2
    assert summary["attempts"][1]["lost_iterations"] <= 1, summary["attempts"]


@pytest.mark.nightly("three minutes; the unit tier decides what goes back, and test_runs_elastic.py lets a run grow")
@pytest.mark.pod_images("base")
def test_a_run_begins_on_fewer_nodes_gives_back_one_that_it_cannot_use_and_grows_later(
    placed: Runs, tmp_path: Path
) -> None:
    testbed, total = placed.testbed, 500
    near, far = testbed.nodes
    testbed.kubectl("cordon", far.name)
    near.set_gpus(2)
    values = {
        **spec(),
        "command": ["python3", "-c", RESUMES.replace("TOTAL", str(total))],
        "nodes": [1, 3],
    }
    values["capacity"] |= {"patience": "30s", "partial": "40s"}  # node 0 may have to take the node of another pod
    run = placed.submit(values, image="base")
    followed = FollowedRun(placed, run)
    assert followed.until_kind(record.STARTED).values["nodes"] == 1
    followed.until("a surplus node is released", lambda event: "1 is released" in (event.reason or ""))
    wait_for("one pod alone", lambda: places(placed, run) == [near.name], LIMIT)
    uid = placed.pod(run, 0)["metadata"]["uid"]
    near.set_gpus(3)
    wait_for("all pods once the pause is over", lambda: places(placed, run) == [near.name] * 3, LIMIT)
    assert followed.until_attempt(2).values["nodes"] == 3
    assert placed.pod(run, 0)["metadata"]["uid"] == uid, "node 0 stays"
    assert followed.end(2 * LIMIT).kind == "succeeded", followed.recent_events()
    decisions = [event.values for event in followed.events if event.kind == record.PLACED]
    assert {each["group"] for each in decisions} == {"near"}
    (released,) = [each for each in decisions if "1 is released" in each["reason"]]
    assert 40 <= released["idle"] < 120, released
    summary = followed.summary()
    assert [each["world"]["rate"] for each in summary["attempts"]] == [1.5, 4.5], "no node that is released"
    assert (summary["failures"], summary["interruptions"], summary["iteration"]) == (0, 1, total)
