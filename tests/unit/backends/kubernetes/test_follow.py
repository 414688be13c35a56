"""Following a run, against a cluster whose every answer is scripted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from lightkube import ApiError

from spotmpi.agent import pod_record, record
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.core.events import Event
from spotmpi.plan import manifests
from tests.unit.backends.kubernetes.watched_cluster import (
    RUN,
    FakeCluster,
    Object,
    api_error,
    jobset,
    pod,
    stamp,
    unscheduled_pod,
)


def follow(
    cluster: FakeCluster, of: Object, script: Callable[[list[Event]], None] = lambda events: None, enough: int = 99
) -> list[Event]:
    """Give the events of a followed run; *script* is called after each, and *enough* events end the following."""

    async def collect() -> list[Event]:
        events: list[Event] = []
        async for entries in ClusterFollower(cluster, of).follow():  # type: ignore[arg-type]
            for event in (each.event for entry in entries for each in entry.split() if each.event):
                events.append(event)
                script(events)
            if len(events) >= enough:
                break
        return events

    return asyncio.run(asyncio.wait_for(collect(), 20))


def look(cluster: FakeCluster, of: Object) -> list[Event]:
    """Give the events of a run as they are now."""

    async def collect() -> list[Event]:
        batches = ClusterFollower(cluster, of).snapshot()  # type: ignore[arg-type]
        return [entry.event async for entries in batches for entry in entries if entry.event]

    return asyncio.run(asyncio.wait_for(collect(), 20))


def log_line(number: int, kind: str, **values: Any) -> str:
    return json.dumps({"n": number, "e": {"t": time.time(), "event": kind, **values}}, separators=(",", ":"))


def failed(reason: str, kind: str = "Failed") -> Object:
    return {"conditions": [{"type": kind, "status": "True", "message": reason}]}


def test_the_reason_of_a_wait_is_reported_once_and_again_when_it_changes() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "0/2 nodes: insufficient cpu")])

    def script(events: list[Event]) -> None:
        if len(events) == 1:
            cluster.put(api.POD, "MODIFIED", unscheduled_pod(0, "0/3 nodes: insufficient memory"))

    events = follow(cluster, jobset(), script, enough=2)
    assert [event.kind for event in events] == [record.WAITING, record.WAITING]
    assert "insufficient cpu (gives up in 10 min)" in str(events[0].reason)
    assert "insufficient memory (gives up in 10 min)" in str(events[1].reason)


def test_the_clouds_diagnosis_is_part_of_the_waiting_reason() -> None:
    waiting = FakeCluster([unscheduled_pod(0, "0/2 nodes: insufficient nvidia.com/gpu")])

    async def collect() -> list[Event | None]:
        batches = ClusterFollower(waiting, jobset(), lambda: "scaling group gpu-a: no capacity in the zone")  # type: ignore[arg-type]
        return [entry.event async for entries in batches.snapshot() for entry in entries]

    (event,) = asyncio.run(asyncio.wait_for(collect(), 20))
    assert event and str(event.reason).startswith(
        "1/2 nodes: 0/2 nodes: insufficient nvidia.com/gpu; scaling group gpu-a: no capacity in the zone (gives up in"
    )


def test_the_start_limit_counts_down_and_ends_a_run_whose_first_node_never_comes() -> None:
    whole = -(time.time() % 1)  # the cluster's clock stands at a whole second, which is all that objects tell
    cluster = FakeCluster([pod(0, "Pending", 5), pod(1, "Running", 5)], ahead=whole)
    events = follow(cluster, jobset(age=1, start="4s"))

    assert [event.kind for event in events[-2:]] == [record.WAITING, record.FAILED]
    steps = [str(event.reason).rpartition("(")[2] for event in events[:-1]]
    assert steps == ["gives up in 3 s)", "gives up in 2 s)", "gives up in 1 s)"]
    assert "limits.start (4s) is over: 1/2 nodes: containers are being created" in str(events[-1].reason)
    assert cluster.deleted == [RUN]
    assert cluster.patched[0]["metadata"]["annotations"][manifests.ANNOTATION_GIVEN_UP] == events[-1].reason


def test_a_snapshot_ends_a_run_that_has_waited_too_long() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU", 690)])
    (end,) = look(cluster, jobset(age=700))
    assert (
        end.kind == record.FAILED and "limits.start (600s) is over" in str(end.reason) and "no GPU" in str(end.reason)
    )
    assert cluster.deleted == [RUN]


@pytest.mark.parametrize(
    ("of", "pods"),
    [
        (jobset(age=700, suspend=True), []),  # a queue holds it
        (jobset(age=700), [pod(0, "Running", 650), pod(1, "Pending", 650)]),  # node 0's agent keeps the limit itself
        (jobset(age=700), [pod(0, "Pending", 30)]),  # started again a moment ago
        (jobset(age=700, status={"restarts": 1}), []),  # the time since when is unknown
        (
            jobset(
                age=700,
                status={"conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": stamp(5)}]},
            ),
            [],
        ),
    ],
    ids=["queued", "led", "restarted", "restarting", "admitted"],
)
def test_a_run_that_has_not_waited_too_long_for_its_first_node_is_left_alone(of: Object, pods: list[Object]) -> None:
    cluster = FakeCluster(pods)
    events = look(cluster, of)
    assert not any(event.terminal for event in events)
    assert not cluster.deleted


def test_a_run_that_its_queue_has_just_admitted_has_its_whole_start_limit() -> None:
    conditions = {"conditions": [{"type": "Suspended", "status": "True", "lastTransitionTime": stamp(690)}]}
    queued = jobset(age=700, status=conditions)
    queued["metadata"]["labels"] = {manifests.LABEL_QUEUE: "team"}
    cluster = FakeCluster([])
    assert not any(event.terminal for event in look(cluster, queued))
    assert not cluster.deleted


def test_the_end_comes_last_also_where_a_nodes_clock_is_ahead() -> None:
    cluster = FakeCluster([pod(0, "Running")])
    name = pod(0, "Running")["metadata"]["name"]
    late = {"t": time.time() + 60, "event": record.RESTARTED, "attempt": 1}
    cluster.logs[name] = [json.dumps({"n": 1, "e": late}, separators=(",", ":"))]
    deleted = jobset()
    deleted["metadata"]["annotations"][manifests.ANNOTATION_STOPPED] = "enough"
    events = follow(cluster, jobset(), lambda events: cluster.put(api.JOBSET, "DELETED", deleted))
    assert [event.kind for event in events] == [record.RESTARTED, record.STOPPED]
    assert events[1].time > events[0].time


def test_a_user_who_may_not_delete_a_run_goes_on_waiting_for_it() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU", 690)])
    cluster.errors["patch"] = api_error(403)
    (event,) = follow(cluster, jobset(age=700), enough=1)
    assert event.kind == record.WAITING and "limits.start (600s) is over" in str(event.reason)


def test_a_run_given_up_by_another_terminal_failed_with_that_reason() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU")])

    def script(events: list[Event]) -> None:
        given_up = jobset()
        given_up["metadata"]["annotations"][manifests.ANNOTATION_GIVEN_UP] = "limits.start (600s) is over"
        cluster.put(api.JOBSET, "MODIFIED", given_up)
        cluster.put(api.JOBSET, "DELETED", given_up)

    end = follow(cluster, jobset(), script)[-1]
    assert (end.kind, end.reason) == (record.FAILED, "limits.start (600s) is over")


def test_a_deleted_jobset_is_a_stopped_run() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU")])
    end = follow(cluster, jobset(), lambda events: cluster.put(api.JOBSET, "DELETED", jobset()))[-1]
    assert (end.kind, end.reason) == (record.STOPPED, "its JobSet was deleted")


def test_a_run_that_completed_before_its_jobset_was_deleted_has_succeeded() -> None:
    """As after its TTL, where the follower saw nothing of the end."""
    cluster = FakeCluster([pod(0, "Running")])
    completed = jobset(status={"conditions": [{"type": "Completed", "status": "True"}]})
    cluster.put(api.JOBSET, "DELETED", completed)
    assert [event.kind for event in follow(cluster, jobset())][-1] == record.SUCCEEDED


class LatePods(FakeCluster):
    """A cluster that answers the watch of pods later than that of the JobSet."""

    async def watch(self, kind: str, labels: Any = None, name: str | None = None) -> AsyncIterator[tuple[str, Object]]:
        if kind == api.POD:
            await asyncio.sleep(0.2)
        async for change in super().watch(kind, labels, name):
            yield change


@pytest.mark.parametrize("cluster_type", [FakeCluster, LatePods])
def test_the_output_of_a_pod_that_ended_at_once_is_complete(cluster_type: type[FakeCluster]) -> None:
    """The only pod has ended before anything of it was seen, and the run has no volume that keeps its output."""
    leader = pod(0, "Succeeded")
    cluster = cluster_type([leader])
    line = json.dumps({"n": 2, pod_record.LINE: [1, 0, 1, time.time(), 0, "o", "hello"]}, separators=(",", ":"))
    cluster.logs[leader["metadata"]["name"]] = [log_line(1, "started", attempt=1), line, log_line(3, "succeeded")]
    completed = jobset(nodes=1, status={"conditions": [{"type": "Completed", "status": "True"}]})
    cluster.put(api.JOBSET, "MODIFIED", completed)

    events = follow(cluster, jobset(nodes=1))

    assert [event.kind for event in events] == [record.STARTED, record.LINE, record.SUCCEEDED]
    assert events[1].values["text"] == "hello"


def test_the_output_of_a_pod_is_read_once_its_container_has_ended_though_its_phase_is_still_pending() -> None:
    """A kubelet reports the end of a container, and only a second later the phase of its pod."""
    terminated = {"terminated": {"exitCode": 0, "finishedAt": stamp()}}
    leader = pod(0, "Pending", containerStatuses=[{"name": "node", "state": terminated}])
    cluster = FakeCluster([leader])
    cluster.logs[leader["metadata"]["name"]] = [log_line(1, "started", attempt=1), log_line(2, "succeeded")]

    events = follow(cluster, jobset(nodes=1))

    assert [event.kind for event in events] == [record.STARTED, record.SUCCEEDED]


def test_a_stop_by_another_terminal_is_reported_before_the_last_pod_is_gone() -> None:
    cluster = FakeCluster([pod(0, "Running"), pod(1, "Pending")])

    def script(events: list[Event]) -> None:
        deleted = jobset()
        deleted["metadata"]["annotations"][manifests.ANNOTATION_STOPPED] = "enough"
        cluster.put(api.JOBSET, "MODIFIED", deleted)
        cluster.put(api.JOBSET, "MODIFIED", deleted | {"metadata": {**deleted["metadata"], "deletionTimestamp": "x"}})

    end = follow(cluster, jobset(), script)[-1]
    assert (end.kind, end.reason) == (record.STOPPED, "enough")


def test_a_jobset_deleted_while_the_api_was_out_of_reach_is_a_stopped_run() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU")])
    no_jobset: Object = {"items": []}
    end = follow(cluster, jobset(), lambda events: cluster.put(api.JOBSET, api.RESYNC, no_jobset))[-1]
    assert end.kind == record.STOPPED


def test_the_end_recorded_by_the_agent_has_priority_over_the_jobsets() -> None:
    leader = pod(0, "Running")
    cluster = FakeCluster([leader, pod(1, "Running")])
    cluster.logs[leader["metadata"]["name"]] = [log_line(1, "started", attempt=1), log_line(2, "failed", reason="why")]

    def script(events: list[Event]) -> None:
        cluster.put(api.JOBSET, "MODIFIED", jobset(status=failed("jobset failed due to exit code 78")))
        cluster.put(api.POD, "MODIFIED", pod(0, "Failed"))

    events = follow(cluster, jobset(), script)
    assert [(event.kind, event.reason) for event in events] == [(record.STARTED, None), (record.FAILED, "why")]


def test_the_last_line_of_an_agents_traceback_is_in_the_reason() -> None:
    leader = pod(0, "Failed")
    cluster = FakeCluster([leader])
    cluster.logs[leader["metadata"]["name"]] = ["Traceback", "ImportError: no such module"]
    of = jobset(status=failed("job failed"))
    of["status"]["conditions"][0]["lastTransitionTime"] = stamp(3600)
    (end,) = look(cluster, of)
    assert end.kind == record.FAILED and end.time < time.time() - 3000, "it did not end when somebody looked"
    assert end.reason == "job failed; ImportError: no such module"


def out_of_retries() -> Object:
    condition = {"type": "Failed", "status": "True", "message": "jobset failed", "reason": "ReachedMaxRestarts"}
    return jobset(status={"conditions": [condition]})


def killed_pod(code: int, reason: str) -> Object:
    end = {"exitCode": code, "reason": reason}
    return pod(0, "Failed", 60, containerStatuses=[{"name": "node", "state": {"terminated": end}}])


def test_the_last_attempts_failure_is_in_the_reason_when_retries_are_exhausted() -> None:
    """The reason has the failure itself, not only that JobSet restarts no more."""
    leader = killed_pod(1, "Error")
    cluster = FakeCluster([leader, pod(1, "Succeeded", 60)])
    cluster.logs[leader["metadata"]["name"]] = [log_line(1, "started", attempt=1)]
    cluster.logs[leader["metadata"]["name"]] += [log_line(2, "restarted", reason="no progress"), "an old stray"]
    assert look(cluster, out_of_retries())[-1].reason == "no progress; limits.failures = 2 is used up"


def test_the_failure_of_an_earlier_attempt_is_not_the_reason_of_the_last_one() -> None:
    """The reason comes from the last pod's output, not from an earlier attempt."""
    leader = pod(0, "Failed", -60)  # made since
    cluster = FakeCluster([leader])
    cluster.logs[leader["metadata"]["name"]] = [
        log_line(1, "restarted", reason="no progress"),
        "ImportError: no module",
    ]
    assert look(cluster, out_of_retries())[-1].reason == "limits.failures = 2 is used up; ImportError: no module"


@pytest.mark.parametrize(
    ("code", "reason", "text"),
    [
        (137, "OOMKilled", "node 0 exceeded the memory limit of its pod (/dev/shm counts): raise resources.memory"),
        (137, "Error", "the agent of node 0 ended with exit code 137; limits.failures = 2 is used up"),
    ],
)
def test_the_reason_says_what_killed_an_agent(code: int, reason: str, text: str) -> None:
    """The reason names memory or the exit code, not only that JobSet restarts no more."""
    assert text in str(look(FakeCluster([killed_pod(code, reason)]), out_of_retries())[-1].reason)


def test_a_worker_killed_for_memory_is_reported_before_the_next_attempt() -> None:
    """The node and the remedy are reported once, instead of "lost" for each attempt."""
    end = {"exitCode": 137, "reason": "OOMKilled"}
    dead = pod(1, "Failed", containerStatuses=[{"name": "node", "state": {"terminated": end}}])
    (event,) = follow(FakeCluster([pod(0, "Running"), dead, dead]), jobset(), enough=1)
    assert event.kind == record.WAITING and str(event.reason).startswith("node 1 exceeded the memory limit of its pod")


def test_a_refused_watch_ends_the_stream_with_the_refusal() -> None:
    cluster = FakeCluster([])
    cluster.errors[api.POD] = api_error(403)
    with pytest.raises(ApiError):
        follow(cluster, jobset())


def test_a_user_who_may_not_read_events_still_sees_pod_conditions() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU")])
    cluster.errors[api.EVENT] = api_error(403)
    (event,) = follow(cluster, jobset(), enough=1)
    assert "no GPU" in str(event.reason)
    assert "no GPU" in str(look(cluster, jobset())[0].reason)


def test_pods_deleted_while_the_api_was_out_of_reach_are_forgotten() -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU"), unscheduled_pod(1, "no GPU")])

    def script(events: list[Event]) -> None:
        if len(events) == 1:
            cluster.put(api.POD, api.RESYNC, {"items": [unscheduled_pod(1, "no memory")]})

    events = follow(cluster, jobset(), script, enough=2)
    assert "2/2 nodes: no GPU" in str(events[0].reason)
    assert "1/2 nodes: no memory" in str(events[1].reason)
