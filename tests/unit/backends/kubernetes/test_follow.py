"""Following a run on a fake cluster."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError

from spotmpi.agent import placement, pod_context, pod_record, record
from spotmpi.api.view import Throughput, event_text
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow import run as following
from spotmpi.backends.kubernetes.follow.jobset import RUNNING
from spotmpi.core.events import Event
from spotmpi.plan import cluster_plan, manifests
from spotmpi.runs.pod_output import SeenEvents
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import (
    RUN,
    condition,
    event,
    jobset,
    log_line,
    pod,
    stamp,
    terminated_pod,
    unscheduled_pod,
)
from tests.cloud.cluster.store import Object
from tests.testbed.web import free_port
from tests.unit.backends.kubernetes.following import follow, look


def test_the_reason_of_a_wait_is_reported_once_and_again_when_it_changes(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "0/2 nodes: insufficient cpu"))

    def script(events: list[Event]) -> None:
        if len(events) == 1:
            cluster.put(unscheduled_pod(0, "0/3 nodes: insufficient memory"))

    events = follow(cluster, jobset(), script, enough=2)
    assert [event.kind for event in events] == [record.WAITING, record.WAITING]
    assert "insufficient cpu (gives up in 10 min)" in str(events[0].reason)
    assert "insufficient memory (gives up in 10 min)" in str(events[1].reason)


@pytest.mark.parametrize(("nodes", "goes_on"), [([1, 2], True), ([2, 4], False)], ids=["enough", "too few"])
def test_a_run_that_may_have_fewer_nodes_waits_for_none_that_it_can_do_without(
    cluster: FakeCluster, nodes: list[int], goes_on: bool
) -> None:
    cluster.put(pod(0, "Running"))
    cluster.put(unscheduled_pod(1, "0/2 nodes: insufficient cpu"))

    (waiting,) = look(cluster, jobset(nodes=nodes))
    if goes_on:
        assert waiting.reason == f"1/{nodes[-1]} nodes: 0/2 nodes: insufficient cpu; the run goes on without"
    else:
        assert "insufficient cpu (gives up in" in str(waiting.reason)
    assert waiting.values.get(RUNNING, False) is goes_on


def test_a_run_at_which_no_controller_of_jobset_looks_says_so(cluster: FakeCluster) -> None:
    """As where its CRD was installed without its controller, or that is down and has no webhook."""
    (young,) = look(cluster, jobset(age=5))
    assert young.reason and "no pods yet (gives up in 10 min)" in young.reason
    (waiting,) = look(cluster, jobset(age=30))
    words = "no pods yet; JobSet's controller has not looked at the run; check `kubectl -n jobset-system get pods`"
    assert waiting.reason and waiting.reason.startswith(words)
    (seen,) = look(cluster, jobset(age=30, status=condition("Suspended", "False", lastTransitionTime=stamp(25))))
    assert seen.reason and seen.reason.startswith("no pods yet (gives up")


def test_a_run_that_somebody_suspends_says_so_unless_it_waits_in_a_queue(cluster: FakeCluster) -> None:
    """Kueue does where it is configured with manageJobsWithoutQueueName; the run would wait without a limit."""
    suspended = condition("Suspended", lastTransitionTime=stamp(25))
    (waiting,) = look(cluster, jobset(age=30, suspend=True, status=suspended))
    words = "no pods yet; its JobSet is suspended, as by Kueue where that manages runs without a queue: name one"
    assert waiting.reason and waiting.reason.startswith(words)
    queued = jobset(age=30, suspend=True, status=suspended, labels={manifests.LABEL_QUEUE: "gpus"})
    assert [each.reason for each in look(cluster, queued)] == ["no pods yet"]


def test_a_claim_of_the_run_that_gets_no_volume_is_part_of_the_reason(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "pod has unbound immediate PersistentVolumeClaims"))
    about = {"kind": "PersistentVolumeClaim", "name": "runs"}
    cluster.put(event(about, "ProvisioningFailed", 'storageclass.storage.k8s.io "efs" not found'))
    (waiting,) = look(cluster, jobset(volume="runs"))
    assert waiting.reason and 'claim runs: storageclass.storage.k8s.io "efs" not found' in waiting.reason


def test_a_follower_says_once_that_the_cluster_does_not_answer_and_goes_on_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(port=free_port())
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config")))
    cluster.put(pod(0, "Running"), pod(1, "Running"))
    clusters, timers = [cluster], list[threading.Timer]()

    def come_back() -> None:
        ended = jobset(status=condition("Completed", lastTransitionTime=stamp()))
        clusters.append(FakeCluster(ended, port=cluster.port))
        assert clusters[-1].port == cluster.port

    def script(events: list[Event]) -> None:
        if events[-1].reason and "does not answer" in events[-1].reason:
            timers.append(threading.Timer(0.3, come_back))
            timers[-1].start()

    timers.append(threading.Timer(0.5, cluster.close))
    timers[-1].start()
    try:
        events = follow(cluster, jobset(), script)
    finally:
        for timer in timers:
            timer.join()
        for restarted in clusters[1:]:
            restarted.close()
    outages = [each for each in events if each.reason and "the cluster does not answer (" in each.reason]
    assert len(outages) == 1 and outages[0].values[RUNNING], events
    assert events[-1].kind == record.SUCCEEDED


def injected(node: int, *sidecars: str, kind: str = "containerStatuses") -> Object:
    """A pod that runs, to which a webhook has added containers; native sidecars are init containers."""
    state = {"running": {"startedAt": stamp()}}
    running = {name: {"name": name, "state": state} for name in ("node", *sidecars)}
    statuses: Object = {"containerStatuses": [running.pop("node")]}
    statuses[kind] = [*statuses.get(kind, []), *running.values()]
    return pod(node, "Running", **statuses)


def test_a_container_that_a_webhook_adds_is_named_since_no_pod_ends_before_it(cluster: FakeCluster) -> None:
    """Istio's and Linkerd's proxies, unless they are native sidecars: JobSet neither replaces nor ends such pods."""
    cluster.put(injected(0, "istio-proxy"), injected(1, "istio-proxy"))
    (running,) = look(cluster, jobset())
    assert running.values[RUNNING] and "adds the container istio-proxy to the pods" in str(running.reason)
    cluster.put(injected(0, "istio-proxy", kind="initContainerStatuses"), injected(1))
    assert look(cluster, jobset()) == []


def test_nodes_that_an_added_container_keeps_after_the_end_are_no_secret(cluster: FakeCluster) -> None:
    cluster.put(injected(0, "istio-proxy"), injected(1, "istio-proxy"))
    cluster.add_log(pod(0, "Running"), log_line(1, record.SUCCEEDED))
    kept, end = look(cluster, jobset())[-2:]
    assert end.kind == record.SUCCEEDED and f"`kubectl delete jobset {RUN}` ends it" in str(kept.reason)
    kept, end = follow(cluster, jobset())[-2:]
    assert end.kind == record.SUCCEEDED and f"`kubectl delete jobset {RUN}` ends it" in str(kept.reason)
    ended = jobset(status=condition("Completed", lastTransitionTime=stamp()))
    assert "keeps their nodes" not in str(look(cluster, ended))


def test_the_clouds_diagnosis_is_part_of_the_waiting_reason(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "0/2 nodes: insufficient nvidia.com/gpu"))
    (event,) = look(cluster, jobset(), lambda: "scaling group gpu-a: no capacity in the zone")
    assert str(event.reason).startswith(
        "1/2 nodes: 0/2 nodes: insufficient nvidia.com/gpu; scaling group gpu-a: no capacity in the zone (gives up in"
    )


def test_no_run_is_given_up_before_its_pods_are_known(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was submitted long ago, and the API server thinks longer about its pods than a check may take to come."""
    running = pod(0, "Running", 7_000)
    cluster.put(running)
    cluster.add_log(running, log_line(1, record.STARTED, attempt=1))
    monkeypatch.setattr(following, "CHECK_INTERVAL", 0.0)
    watch = ClusterApi.watch

    async def late_watch(client: ClusterApi, kind: str, *rest: Any, **more: Any) -> AsyncIterator[tuple[str, Object]]:
        await asyncio.sleep(0.2 if kind == cluster_api.POD else 0.0)
        async for change in watch(client, kind, *rest, **more):
            yield change

    monkeypatch.setattr(ClusterApi, "watch", late_watch)
    events = follow(cluster, jobset(age=7_200), enough=1)
    assert [event.kind for event in events] == [record.STARTED] and not cluster.deleted


def test_the_start_limit_counts_down_and_ends_a_run_whose_first_node_never_comes(cluster: FakeCluster) -> None:
    cluster.put(pod(0, "Pending", 5), pod(1, "Running", 5))
    events = follow(cluster, jobset(age=1, start="3s"))  # made at a whole second, so 1 to 2 s ago

    assert [event.kind for event in events[-2:]] == [record.WAITING, record.FAILED]
    steps = [str(event.reason).rpartition("(")[2] for event in events[:-1]]
    assert steps in (["gives up in 2 s)", "gives up in 1 s)"], ["gives up in 1 s)"])
    assert "limits.start (3s) is over: 1/2 nodes: containers are being created" in str(events[-1].reason)
    assert cluster.deleted == [RUN]
    assert cluster.patched[0][2]["metadata"]["annotations"][manifests.ANNOTATION_GIVEN_UP] == events[-1].reason


def test_a_snapshot_ends_a_run_that_has_waited_too_long(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU", 690))
    (end,) = look(cluster, jobset(age=700))
    assert end.kind == record.FAILED
    assert "limits.start (10m) is over" in str(end.reason) and "no GPU" in str(end.reason)
    assert cluster.deleted == [RUN]


# Made in the test, not when it is collected, which may be long before.
LEFT_ALONE: dict[str, Callable[[], tuple[list[Object], Object]]] = {
    "a queue holds it": lambda: ([], {"suspend": True}),
    "its first node keeps the limit itself": lambda: ([pod(0, "Running", 650), pod(1, "Pending", 650)], {}),
    "it was restarted a moment ago": lambda: ([pod(0, "Pending", 30)], {}),
    "since when it restarts is unknown": lambda: ([], {"status": {"restarts": 1}}),
    "just resumed by its queue": lambda: (
        [],
        {"status": condition("Suspended", "False", lastTransitionTime=stamp(5))},
    ),
    "just admitted by its queue": lambda: (
        [],
        {
            "status": condition("Suspended", "True", lastTransitionTime=stamp(690)),
            "labels": {manifests.LABEL_QUEUE: "team"},
        },
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_a_run_that_has_not_waited_too_long_for_its_first_node_is_left_alone(cluster: FakeCluster, case: str) -> None:
    pods, of = LEFT_ALONE[case]()
    cluster.put(*pods)
    assert not any(event.terminal for event in look(cluster, jobset(age=700, **of)))
    assert not cluster.deleted


def placed_jobset(*decisions: placement.Decision, tried: list[str], **more: Any) -> Object:
    at = decisions[-1]["group"]
    state = placement.State(
        order=["g5", "g6"], at=at, tried=tried, moving=False, decisions=[*decisions], seen=[], away=None
    )
    return jobset(annotations={pod_context.PLACEMENT_ANNOTATION: placement.to_text(state)}, **more)


def decided(group: str, moment: float | None) -> placement.Decision:
    return {"t": moment, "group": group, "type": "x", "market": "spot", "rate": 2.0, "reason": "why"}


def test_each_placement_is_reported_once_with_its_price_and_the_first_at_the_submission(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU"))
    before = placed_jobset(decided("g5", None), tried=[])
    after = placed_jobset(decided("g5", None), decided("g6", 7.0), tried=["g5"])

    def script(events: list[Event]) -> None:
        if len([event for event in events if event.kind == record.PLACED]) < 2:
            cluster.put(after)
        else:
            cluster.remove(after)

    placed = [event for event in follow(cluster, before, script) if event.kind == record.PLACED]
    submitted = datetime.fromisoformat(before["metadata"]["creationTimestamp"]).timestamp()
    assert [(event.time, event.values["group"]) for event in placed] == [(submitted, "g5"), (7.0, "g6")]
    assert event_text(placed[1], Throughput()) == "capacity: g6 (x, spot, $2 an hour): why"
    assert [event.kind for event in look(cluster, after)].count(record.PLACED) == 2


def test_a_late_look_has_each_placement_before_the_attempt_that_it_led_to(cluster: FakeCluster) -> None:
    """All of them came first: in a copy that was made so, each attempt was on the newest group, and cost that much."""
    leader = pod(0, "Running")
    cluster.put(leader)
    moved = placed_jobset(decided("g5", None), decided("g6", 7.0), decided("g5", 9.0), tried=[])
    submitted = datetime.fromisoformat(moved["metadata"]["creationTimestamp"]).timestamp()
    placed: list[Object] = [{"t": submitted, "group": "g5"}, {"t": 7.0, "group": "g6"}]
    printed: list[tuple[str, Object]] = [(record.PLACED, placed[0]), ("started", {"attempt": 1})]
    printed += [(record.PLACED, placed[1]), ("started", {"attempt": 2})]
    cluster.add_log(leader, *(log_line(number, kind, **values) for number, (kind, values) in enumerate(printed, 1)))
    seen = SeenEvents()
    events = [each for each in look(cluster, moved) if seen.is_new(each) and each.kind != record.WAITING]
    assert [each.values.get("group") or each.attempt for each in events] == ["g5", 1, "g6", 2, "g5"]


@pytest.mark.parametrize(("tried", "ends"), [(["g5"], True), ([], False)])
def test_the_start_limit_allows_for_the_patience_while_another_group_is_left(
    cluster: FakeCluster, tried: list[str], ends: bool
) -> None:
    """Patience is 10 minutes, as the start limit; this gang has waited for 15."""
    cluster.put(unscheduled_pod(0, "no GPU", 900))
    events = look(cluster, placed_jobset(decided("g6", None), tried=tried, age=900))
    assert any(event.terminal for event in events) == ends


@pytest.mark.parametrize(("age", "ends"), [(500, False), (700, True)])
def test_a_run_that_gave_nodes_back_waits_without_nodes_for_no_longer_than_the_start_limit(
    cluster: FakeCluster, age: float, ends: bool
) -> None:
    """The limit of 10 minutes counts from the first time: each new try would begin it anew."""
    now = time.time()
    gave: placement.Decision = {**decided("g6", now - age), "reason": "g6 gave 3 of 4 nodes", "until": now - age + 300}
    again: placement.Decision = {**gave, "t": now - 60, "until": now + 239}
    waits = placed_jobset(gave, again, tried=["g5"], age=age + 60)
    annotations = waits["metadata"]["annotations"]
    state = json.loads(annotations[pod_context.PLACEMENT_ANNOTATION])
    annotations[pod_context.PLACEMENT_ANNOTATION] = json.dumps({**state, "moving": True})
    waits["spec"]["suspend"] = True
    *_, last = look(cluster, waits)
    assert last.terminal == ends
    text = "no nodes are asked for, for 4 min: g6 gave 3 of 4 nodes"
    before, after = ("limits.start (10m) is over: ", "") if ends else ("", " (gives up in 100 s)")
    assert last.reason == f"{before}{text}{after}"


@pytest.mark.parametrize(("age", "ends"), [(500, False), (700, True)])
def test_a_run_that_asks_its_groups_again_and_again_waits_for_no_longer_than_the_start_limit(
    cluster: FakeCluster, age: float, ends: bool
) -> None:
    """The limit of 10 minutes counts from when it asked one again first: the pods of each new try are younger."""
    now = time.time()
    again: placement.Decision = {**decided("g5", now - age), "again": True}
    newest: placement.Decision = {**decided("g6", now - 60), "again": True}
    waits = placed_jobset(
        decided("g5", None), decided("g6", now - age - 600), again, newest, tried=["g5"], age=age + 1200
    )
    cluster.put(unscheduled_pod(0, "no GPU", 50))
    *_, last = look(cluster, waits)
    assert last.terminal == ends
    before, after = ("limits.start (10m) is over: ", "") if ends else ("", " (gives up in 100 s)")
    assert str(last.reason).startswith(before) and str(last.reason).endswith(after)


def test_a_run_that_waits_for_the_start_of_its_capacity_block_says_so_and_is_not_given_up(cluster: FakeCluster) -> None:
    """Its submission was 15 minutes ago, and the start limit is 10."""
    why = "waits for the Capacity Block cr-00000001, which starts at 2026-11-21 11:30 UTC"
    decision: placement.Decision = {**decided("g6", None), "reason": why, "starts": time.time() + 26.5 * 3600}
    waits = placed_jobset(decision, tried=[], age=900)
    annotations = waits["metadata"]["annotations"]
    state = json.loads(annotations[pod_context.PLACEMENT_ANNOTATION])
    annotations[pod_context.PLACEMENT_ANNOTATION] = json.dumps({**state, "moving": True})
    waits["spec"]["suspend"] = True
    *_, last = look(cluster, waits)
    assert not last.terminal and last.reason == f"no nodes are asked for, for 27 h: {why}"


def test_a_run_with_a_deadline_may_wait_for_its_nodes_up_to_then(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU", 900))
    waits = placed_jobset(decided("g6", None), tried=["g5"], age=900)
    annotations = waits["metadata"]["annotations"]
    spec = json.loads(annotations[cluster_plan.ANNOTATION_SPEC])
    for deadline, ends in (("20m", False), ("4m", True)):
        capacity = {"deadline": deadline, "work": "1m"}
        annotations[cluster_plan.ANNOTATION_SPEC] = json.dumps({**spec, "capacity": capacity})
        assert any(event.terminal for event in look(cluster, waits)) == ends


def test_the_end_comes_last_also_where_a_nodes_clock_is_ahead(cluster: FakeCluster) -> None:
    cluster.put(leader := pod(0, "Running"))
    cluster.add_log(leader, log_line(1, record.RESTARTED, t=time.time() + 60, attempt=1))
    stopped = jobset(annotations={manifests.ANNOTATION_STOPPED: "enough"})

    def script(events: list[Event]) -> None:
        cluster.put(stopped)
        cluster.remove(stopped)

    events = follow(cluster, jobset(), script)
    assert [event.kind for event in events] == [record.RESTARTED, record.STOPPED]
    assert events[1].time > events[0].time


def test_a_user_who_may_not_delete_a_run_goes_on_waiting_for_it(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU", 690))
    cluster.forbid("patch", "jobsets")
    (event,) = follow(cluster, jobset(age=700), enough=1)
    assert event.kind == record.WAITING and "limits.start (10m) is over" in str(event.reason)


GIVEN_UP = jobset(annotations={manifests.ANNOTATION_GIVEN_UP: "limits.start (10m) is over"})
COMPLETED = jobset(status=condition("Completed"))
STOPPED = jobset(annotations={manifests.ANNOTATION_STOPPED: "enough"})
STOPPING = {**STOPPED, "metadata": {**STOPPED["metadata"], "deletionTimestamp": stamp()}}


def delete_unseen(cluster: FakeCluster) -> None:
    with cluster.unseen():
        cluster.clear("JobSet")


@pytest.mark.parametrize(
    ("change", "end"),
    [
        pytest.param(
            lambda cluster: (cluster.put(GIVEN_UP), cluster.remove(GIVEN_UP)),
            (record.FAILED, "limits.start (10m) is over"),
            id="given up by another terminal",
        ),
        pytest.param(
            lambda cluster: cluster.put(STOPPED, STOPPING),
            (record.STOPPED, "enough"),
            id="stopped by another terminal, before its last pod is gone",
        ),
        pytest.param(
            lambda cluster: cluster.remove(jobset()), (record.STOPPED, "its JobSet was deleted"), id="deleted"
        ),
        pytest.param(
            delete_unseen, (record.STOPPED, "its JobSet was deleted"), id="deleted while the API was out of reach"
        ),
        pytest.param(
            lambda cluster: (cluster.put(COMPLETED), cluster.remove(COMPLETED)),
            (record.SUCCEEDED, None),
            id="completed, then deleted by its TTL",
        ),
    ],
)
def test_the_last_changes_of_a_jobset_are_the_end_of_its_run(
    cluster: FakeCluster, change: Callable[[FakeCluster], object], end: tuple[str, str | None]
) -> None:
    cluster.put(unscheduled_pod(0, "no GPU"), pod(1, "Pending"))
    last = follow(cluster, jobset(), lambda events: change(cluster))[-1]
    assert (last.kind, last.reason) == end


@pytest.mark.parametrize("late", [False, True], ids=["", "the watch of pods begins late"])
def test_the_output_of_a_pod_that_ended_at_once_is_complete(
    cluster: FakeCluster, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only pod has ended before anything of it was seen, and the run has no volume that keeps its output."""
    leader = pod(0, "Succeeded")
    cluster.put(leader)
    if late:
        monkeypatch.setattr(cluster_api, "RETRY_DELAY", 0.3)
        cluster.refuse("watch", "pods", 503, times=1)
    line = json.dumps({"n": 2, pod_record.LINE: [1, "node/0", 1, time.time(), 0, "o", "hello"]}, separators=(",", ":"))
    cluster.add_log(leader, log_line(1, "started", attempt=1), line, log_line(3, "succeeded"))
    cluster.put(jobset(nodes=1, status=condition("Completed")))

    events = follow(cluster, jobset(nodes=1))

    assert [event.kind for event in events] == [record.STARTED, record.LINE, record.SUCCEEDED]
    assert events[1].values["text"] == "hello"


def test_a_run_whose_api_is_out_of_reach_at_the_last_look_has_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_list(*arguments: Any, **more: Any) -> list[Object]:
        raise httpx2.ConnectError("connection refused")

    monkeypatch.setattr(ClusterApi, "list", no_list)
    cluster.put(jobset(nodes=1, status=condition("Completed")))
    assert [event.kind for event in follow(cluster, jobset(nodes=1))] == [record.GAP, record.SUCCEEDED]


def test_the_output_of_a_pod_is_read_once_its_container_has_ended_though_its_phase_is_still_pending(
    cluster: FakeCluster,
) -> None:
    """A kubelet reports the end of a container, and only a second later the phase of its pod."""
    leader = terminated_pod(0, 0, "Completed", phase="Pending")
    cluster.put(leader)
    cluster.add_log(leader, log_line(1, "started", attempt=1), log_line(2, "succeeded"))
    kinds = [event.kind for event in follow(cluster, jobset(nodes=1))]
    assert [kind for kind in kinds if kind != record.WAITING] == [record.STARTED, record.SUCCEEDED]


def test_the_end_recorded_by_the_agent_has_priority_over_the_jobsets(cluster: FakeCluster) -> None:
    leader = pod(0, "Running")
    cluster.put(leader, pod(1, "Running"))
    cluster.add_log(leader, log_line(1, "started", attempt=1), log_line(2, "failed", reason="why"))

    def script(events: list[Event]) -> None:
        failed = condition("Failed", message="jobset failed due to exit code 78")
        cluster.put(jobset(status=failed))
        cluster.put(pod(0, "Failed"))

    events = follow(cluster, jobset(), script)
    assert [(event.kind, event.reason) for event in events] == [(record.STARTED, None), (record.FAILED, "why")]


def test_a_run_ended_when_its_jobset_did_not_when_somebody_looked(cluster: FakeCluster) -> None:
    failed = condition("Failed", message="job failed", lastTransitionTime=stamp(3600))
    cluster.put(pod(0, "Failed"))
    (end,) = look(cluster, jobset(status=failed))
    assert end.kind == record.FAILED and end.time < time.time() - 3000


def failed_init_container() -> Object:
    ends = {"initContainerStatuses": [{"name": "warm", "state": {"terminated": {"exitCode": 2}}}]}
    waiting = {"name": "node", "state": {"waiting": {"reason": "PodInitializing"}}}
    return pod(0, "Failed", 60, containerStatuses=[waiting], **ends)


NO_RETRIES = {"message": "jobset failed", "reason": "ReachedMaxRestarts"}


@pytest.mark.parametrize(
    ("attempt", "why", "reason"),
    [
        pytest.param(
            lambda: (pod(0, "Failed"), ["Traceback", "ImportError: no such module"]),
            {"message": "job failed"},
            "job failed; ImportError: no such module",
            id="the last line of an agent's traceback",
        ),
        pytest.param(
            lambda: (
                terminated_pod(0, 1, "Error", 60),
                [log_line(1, "started", attempt=1), log_line(2, "restarted", reason="no progress"), "an old stray"],
            ),
            NO_RETRIES,
            "no progress; no retries left (limits.failures = 2)",
            id="the last attempt's failure when retries are exhausted",
        ),
        pytest.param(
            lambda: (
                pod(0, "Failed", -60),  # made since
                [log_line(1, "restarted", reason="no progress"), "ImportError: no module"],
            ),
            NO_RETRIES,
            "no retries left (limits.failures = 2); ImportError: no module",
            id="not the failure of an earlier attempt",
        ),
        pytest.param(
            lambda: (terminated_pod(0, 137, "OOMKilled", 60), []),
            NO_RETRIES,
            "node 0 exceeded the memory limit of its pod (/dev/shm counts): raise resources.memory, or use less; "
            "no retries left (limits.failures = 2)",
            id="memory",
        ),
        pytest.param(
            lambda: (terminated_pod(0, 137, "Error", 60), []),
            NO_RETRIES,
            "the agent of node 0 ended with exit code 137; no retries left (limits.failures = 2)",
            id="the exit code of a killed agent",
        ),
        pytest.param(
            lambda: (terminated_pod(0, 128, "StartError", 60, message='exec: "python3": not found'), []),
            NO_RETRIES,
            'the agent of node 0 ended with exit code 128: exec: "python3": not found; no retries left '
            "(limits.failures = 2)",
            id="an image without Python",
        ),
        pytest.param(
            lambda: (terminated_pod(0, 255, "Error", 60), ["exec /usr/local/bin/python3: exec format error"]),
            NO_RETRIES,
            "exec format error: the image has no build for the architecture of its node; push one, or set "
            "`kubernetes.io/arch` in kubernetes.node_selector; the agent of node 0 ended with exit code 255; "
            "no retries left (limits.failures = 2)",
            id="an image for another architecture",
        ),
        pytest.param(
            lambda: (pod(0, "Failed", 60, reason="UnexpectedAdmissionError", message="no nvidia.com/gpu"), []),
            NO_RETRIES,
            "node 0 was ended by its kubelet: UnexpectedAdmissionError: no nvidia.com/gpu; "
            "no retries left (limits.failures = 2)",
            id="a pod that its kubelet refused or evicted",
        ),
        pytest.param(
            lambda: (failed_init_container(), []),
            NO_RETRIES,
            "init container warm of node 0 ended with exit code 2; `kubectl logs digits-1-node-0-0-abcde -c warm` "
            "shows its output; no retries left (limits.failures = 2)",
            id="an init container of a template",
        ),
    ],
)
def test_the_reason_of_a_failed_run_is_what_its_pods_say_and_not_only_that_jobset_restarts_no_more(
    cluster: FakeCluster, attempt: Callable[[], tuple[Object, list[str]]], why: Object, reason: str
) -> None:
    leader, lines = attempt()  # with the times of this test
    cluster.put(leader, pod(1, "Succeeded", 60))
    cluster.add_log(leader, *lines)
    assert look(cluster, jobset(status=condition("Failed", **why)))[-1].reason == reason


def test_a_worker_killed_for_memory_is_reported_before_the_next_attempt(cluster: FakeCluster) -> None:
    """The node and the remedy are reported once, instead of "lost" for each attempt."""
    dead = terminated_pod(1, 137, "OOMKilled")
    cluster.put(pod(0, "Running"), dead)

    def script(events: list[Event]) -> None:
        cluster.put(dead)  # its status changes again

    (event,) = follow(cluster, jobset(), script, enough=1)
    assert event.kind == record.WAITING and str(event.reason).startswith("node 1 exceeded the memory limit of its pod")


def test_a_refused_watch_ends_the_stream_with_the_refusal(cluster: FakeCluster) -> None:
    cluster.put()
    cluster.forbid("*", "pods")
    with pytest.raises(ApiError):
        follow(cluster, jobset())


def test_a_user_who_may_not_read_events_still_sees_pod_conditions(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU"))
    cluster.forbid("*", "events")
    (event,) = follow(cluster, jobset(), enough=1)
    assert "no GPU" in str(event.reason)
    assert "no GPU" in str(look(cluster, jobset())[0].reason)


@pytest.mark.parametrize("is_followed", [False, True])
def test_the_newest_event_explains_a_wait_whatever_the_order_in_which_they_are_listed(
    cluster: FakeCluster, is_followed: bool
) -> None:
    """Lists are in the order of names, which tell when an event was first; the scheduler repeats one in a series."""
    creating = pod(0, "Pending")
    about = {"kind": "Pod", "name": creating["metadata"]["name"]}
    repeated = event(about, "FailedMount", "timed out", name="a.1", age=500)
    repeated |= {"lastTimestamp": None, "eventTime": stamp(500), "series": {"count": 9, "lastObservedTime": stamp(5)}}
    once = event(about, "FailedAttachVolume", "gone again", name="a.2", age=60)
    cluster.put(creating, repeated, once)
    if is_followed:
        (waiting,) = follow(cluster, jobset(), enough=1)
    else:
        (waiting,) = look(cluster, jobset())
    assert "FailedMount: timed out" in str(waiting.reason)


def test_a_busy_api_server_is_not_taken_for_one_that_forbids_to_read_events(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU"))
    cluster.refuse("list", "events", 500, "the server is busy")
    (waiting,) = look(cluster, jobset())
    assert "no GPU" in str(waiting.reason) and "not permitted" not in str(waiting.reason)


def test_events_of_while_the_api_was_out_of_reach_explain_a_wait(cluster: FakeCluster) -> None:
    quota = event({"name": f"{RUN}-node-0"}, "FailedCreate", "exceeded quota")

    def script(events: list[Event]) -> None:
        with cluster.unseen():
            cluster.put(quota)

    _, waiting = follow(cluster, jobset(), script, enough=2)
    assert "exceeded quota" in str(waiting.reason)


def test_pods_deleted_while_the_api_was_out_of_reach_are_forgotten(cluster: FakeCluster) -> None:
    cluster.put(unscheduled_pod(0, "no GPU"), unscheduled_pod(1, "no GPU"))

    def script(events: list[Event]) -> None:
        if len(events) == 1:
            with cluster.unseen():
                cluster.clear("Pod")
                cluster.put(unscheduled_pod(1, "no memory"))

    events = follow(cluster, jobset(), script, enough=2)
    assert "2/2 nodes: no GPU" in str(events[0].reason)
    assert "1/2 nodes: no memory" in str(events[1].reason)
