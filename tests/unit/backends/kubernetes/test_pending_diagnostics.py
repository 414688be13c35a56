"""What the cloud, the autoscaler and the nodes' own events add to the line that says why a run waits."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from spotmpi.backends.kubernetes.follow import autoscaler, waiting
from spotmpi.backends.kubernetes.follow.waiting import CloudDiagnosis, Observations, PendingDiagnostics, waiting_reason
from spotmpi.core.errors import SpotmpiError
from tests.cloud.cluster import objects
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import of_kind, pod, unscheduled_pod
from tests.cloud.cluster.store import Object

NOW = datetime(2026, 11, 20, 10, 52, 30, tzinfo=UTC).timestamp()
EKS = "eks-gpu-a-8ec4bd5a-0d6f-1b7c-9f0e-3a1c5e7d9b20"
CAPACITY = "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity"


def group(name: str = EKS, scale_up: str = "", health: str = "Healthy", counts: str = "total: 0") -> str:
    """A node group as autoscalers from 1.30 on write it."""
    return f"""
- name: {name}
  health:
    status: {health}
    nodeCounts:
      registered:
        {counts}
      longUnregistered: 0
      unregistered: 0
    cloudProviderTarget: 2
    minSize: 0
    maxSize: 8
    lastProbeTime: "2026-11-20T10:52:04.558615784Z"
  scaleUp:
    {scale_up or "status: NoActivity"}
    lastProbeTime: "2026-11-20T10:52:04.558615784Z"
  scaleDown:
    status: NoCandidates
    lastProbeTime: "2026-11-20T10:52:04.558615784Z"
"""


def backoff(message: str = CAPACITY) -> str:
    why = f"errorCode: placeholder-cannot-be-fulfilled, errorMessage: '{message}'"
    return f"status: Backoff\n    backoffInfo: {{{why}}}"


def config_map(
    groups: str = "", moment: str = "2026-11-20 10:52:04.558615784 +0000 UTC", state: str = "Running"
) -> Object:
    """The autoscaler's ConfigMap."""
    wide = "clusterWide:\n  health:\n    status: Healthy\n    nodeCounts:\n      registered:\n        total: 7\n"
    status = f"time: {moment}\nautoscalerStatus: {state}\n{wide}nodeGroups:{groups}\n"
    name, namespace = autoscaler.STATUS, autoscaler.NAMESPACE
    return of_kind("ConfigMap", name, namespace, data={"status": status})


PROSE = """Cluster-autoscaler status at 2019-09-02 14:57:47.683724023 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=2 unready=0 notStarted=0 longNotStarted=0 registered=2 longUnregistered=0)
               LastProbeTime:      2019-09-02 14:57:47.467422992 +0000 UTC m=+238.237952298
"""


GCE = "https://googleapis.example/zones/z/instanceGroups/pool-1-grp"


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (group(), None),
        (group() + group("idle"), None),
        (group(scale_up=backoff()), f"group gpu-a: {CAPACITY}"),
        (group(scale_up=backoff("")), "group gpu-a: placeholder-cannot-be-fulfilled"),
        (group(scale_up="status: Backoff"), "group gpu-a: its last scale-up failed"),
        (group(scale_up="status: InProgress", counts="ready: 1"), "group gpu-a: 1 of 2 machines are ready nodes"),
        (group(health="Unhealthy", counts="ready: 1"), "group gpu-a: unhealthy, 1 of 2 machines are ready nodes"),
        (
            group().replace("longUnregistered: 0", "longUnregistered: 1"),
            "group gpu-a: 1 machine has not registered as a node long after its start",
        ),
        (
            group().replace("longUnregistered: 0", "longUnregistered: 2"),
            "group gpu-a: 2 machines have not registered as nodes long after their start",
        ),
        (group(GCE, backoff("full")), "group pool-1-grp: full"),
        ("".join(group(f"g{n}", backoff("full")) for n in range(5)), "group g0: full; group g1: full; 3 more groups"),
    ],
)
def test_the_autoscalers_status_becomes_one_line_about_groups_that_are_scaling_up(
    groups: str, problem: str | None
) -> None:
    assert autoscaler.problem_of(config_map(groups), NOW) == problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            config_map(group(scale_up=backoff()), moment="2026-11-20 10:40:04.558615784 +0000 UTC"),
            "the cluster autoscaler has not updated its status for 12 min",
        ),
        (config_map(state="Initializing"), "the cluster autoscaler is not running yet (Initializing)"),
        ({"data": {"status": PROSE}}, None),
        ({"data": {"status": "[torn"}}, None),
        ({"data": {}}, None),
        ({}, None),
    ],
)
def test_a_status_without_current_groups_says_why_where_it_can_be_read(config: Object, problem: str | None) -> None:
    assert autoscaler.problem_of(config, NOW) == problem


UNSCHEDULED = unscheduled_pod(0, "0/4 nodes: insufficient gpu")


def scheduled_pod(phase: str = "Pending", ready: str = "False") -> Object:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]
    return {**pod(0, phase, conditions=conditions), "spec": {"nodeName": "n-1"}}


def node_event(reason: str, message: str, age: float = 10, node: str = "n-1") -> Object:
    return objects.event({"kind": "Node", "name": node}, reason, message, f"{node}.{reason}", age, "default")


def wait_line(cluster: FakeCluster, pod: Object, ask: CloudDiagnosis | None = None, looks: int = 1) -> str | None:
    """The wait line of a run of one pod, submitted a minute ago, after some looks."""
    observations = Observations({"a": pod})
    diagnostics = PendingDiagnostics(cluster.api(), ask, None)

    async def look() -> None:
        for _ in range(looks):
            await diagnostics.update(observations, time.time() - 60)

    asyncio.run(look())
    return waiting_reason(observations, "run-1", 1)


@pytest.fixture
def told(cluster: FakeCluster) -> None:
    """The cluster says why machines are missing, and what happened to one."""
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.000000000 +0000 UTC")
    cluster.put(config_map(group(scale_up=backoff("full")), moment=moment))
    cluster.put(node_event("SpotInterruption", "Spot Instance will be reclaimed"))


pytestmark = pytest.mark.usefixtures("told")


def test_the_autoscalers_problem_explains_a_pod_without_a_node(cluster: FakeCluster) -> None:
    assert wait_line(cluster, UNSCHEDULED) == "1/1 nodes: 0/4 nodes: insufficient gpu; group gpu-a: full"
    assert [request.resource for request in cluster.requests] == ["configmaps"]


def test_the_clouds_diagnosis_has_priority_over_the_autoscalers(cluster: FakeCluster) -> None:
    assert (
        wait_line(cluster, UNSCHEDULED, lambda: "no capacity") == "1/1 nodes: 0/4 nodes: insufficient gpu; no capacity"
    )
    expected = "1/1 nodes: 0/4 nodes: insufficient gpu; group gpu-a: full"
    assert wait_line(cluster, UNSCHEDULED, lambda: None) == expected


def test_an_event_of_its_node_explains_a_pod_that_does_not_start(cluster: FakeCluster) -> None:
    line = "1/1 nodes: containers are being created; node n-1: SpotInterruption: Spot Instance will be reclaimed"
    assert wait_line(cluster, scheduled_pod()) == line
    assert [request.resource for request in cluster.requests] == ["events"]


@pytest.mark.parametrize(
    "events",
    [
        [{"reason": "SpotInterruption", "message": "another's", "node": "n-2"}],
        [{"reason": "Rebooted", "message": "before the run", "age": 3600}],
        [{"reason": "NodeNotReady", "message": "gone", "age": 20}, {"reason": "NodeReady", "message": "back"}],
        [{"reason": "NodeReady", "message": "back"}, {"reason": "NodeNotReady", "message": "gone", "age": 20}],
        [{"reason": "RegisteredNode", "message": "of no interest"}],
    ],
    ids=["another node", "old", "over", "over, out of order", "no trouble"],
)
def test_events_of_other_nodes_and_earlier_times_are_ignored(cluster: FakeCluster, events: list[Object]) -> None:
    cluster.clear("Event")
    cluster.put(*(node_event(**event) for event in events))
    assert wait_line(cluster, scheduled_pod()) == "1/1 nodes: containers are being created"


def test_an_unreachable_node_is_reported_with_its_events(cluster: FakeCluster) -> None:
    gone = scheduled_pod("Running")
    name = gone["metadata"]["name"]
    observations = Observations({name: gone}, messages={name: "NodeNotReady: Node is not ready"})
    asyncio.run(PendingDiagnostics(cluster.api(), None, None).update(observations, time.time() - 60))
    line = waiting_reason(observations, "run-1", 1)
    assert line and line.startswith("1/1 nodes: n-1 does not respond")
    assert line.endswith("; node n-1: SpotInterruption: Spot Instance will be reclaimed")


def test_without_permissions_the_pods_conditions_remain(cluster: FakeCluster) -> None:
    def not_permitted() -> str | None:
        raise SpotmpiError("not permitted")

    cluster.forbid("*", "*")
    assert wait_line(cluster, UNSCHEDULED, not_permitted) == "1/1 nodes: 0/4 nodes: insufficient gpu"
    assert wait_line(cluster, scheduled_pod()) == "1/1 nodes: containers are being created"


@pytest.mark.parametrize("pod", [UNSCHEDULED, scheduled_pod()], ids=["no node", "on a node"])
def test_requests_are_limited_by_their_interval(
    cluster: FakeCluster, pod: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    line = wait_line(cluster, pod, lambda: calls.append(1), looks=5)
    assert len(cluster.requests) == 1 and len(calls) == ("nodeName" not in pod["spec"])
    assert line and ("full" in line or "SpotInterruption" in line)
    monkeypatch.setattr(waiting, "INTERVAL", 0.0)
    cluster.requests.clear()
    wait_line(cluster, pod, looks=3)
    assert len(cluster.requests) == 3


def test_no_request_is_made_about_running_pods(cluster: FakeCluster) -> None:
    assert wait_line(cluster, scheduled_pod("Running", ready="True"), pytest.fail, looks=2) is None
    assert not cluster.requests


def test_a_pod_that_got_its_node_no_longer_waits_for_a_machine(cluster: FakeCluster) -> None:
    observations = Observations({"a": UNSCHEDULED})
    diagnostics = PendingDiagnostics(cluster.api(), None, None)

    async def look() -> None:
        await diagnostics.update(observations, time.time() - 60)
        assert observations.machine_problem
        observations.pods = {"a": scheduled_pod()}
        await diagnostics.update(observations, time.time() - 60)

    asyncio.run(look())
    assert observations.machine_problem is None
