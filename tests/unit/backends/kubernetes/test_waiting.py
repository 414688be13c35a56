"""Why a run waits, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent.plan import NODE, WORKER
from spotmpi.backends.kubernetes.follow.waiting import (
    Observations,
    lost_node_reason,
    reason_key,
    waiting_reason,
    with_countdown,
)
from spotmpi.core import names


def pod(name: str, phase: str = "Pending", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_ROLE: NODE}}, "status": {"phase": phase, **status}}


def unscheduled_pod(name: str, message: str) -> dict[str, Any]:
    return pod(name, conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def container(name: str, reason: str, message: str | None = None) -> dict[str, Any]:
    waiting = {"reason": reason} | ({"message": message} if message else {})
    return pod(name, containerStatuses=[{"state": {"waiting": waiting}}])


def event(name: str, reason: str, note: str, key: str = "involvedObject") -> dict[str, Any]:
    values = {key: {"name": name}, "reason": reason, "note" if key == "regarding" else "message": note}
    return {**values, "metadata": {"creationTimestamp": "2026-11-20T08:00:00Z"}}


def reason_of(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = (), nodes: int = 4) -> str | None:
    return waiting_reason(observed(*pods, events=events), "run-1", nodes)


def observed(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> Observations:
    observations = Observations({item["metadata"]["name"]: item for item in pods})
    for each in events:
        observations.add_event(each)
    return observations


def worker_metadata(name: str) -> dict[str, Any]:
    return {"name": name, "labels": {names.LABEL_ROLE: WORKER}}


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_pods_that_have_started_do_not_wait(phase: str) -> None:
    assert reason_of(pod("a", phase), pod("b", phase)) is None


def test_a_pod_that_the_controller_has_not_let_in_yet_says_for_what_it_waits() -> None:
    """The condition is that of registry/core/pod/strategy.go of Kubernetes."""
    gated = unscheduled_pod("a", "Scheduling is blocked due to non-empty scheduling gates")
    gated["spec"] = {"schedulingGates": [{"name": "spotmpi.dev/machines-at-fault"}]}
    text = "1/4 nodes: waits for the run's placement controller, which keeps it off machines at fault"
    assert reason_of(gated, pod("b", "Running"), pod("c", "Running"), pod("d", "Running")) == text


def test_the_reason_most_pods_share_is_reported_with_their_number() -> None:
    messages = {"a": "no GPU", "b": "no GPU", "c": "taint"}
    pods = [*(unscheduled_pod(name, message) for name, message in messages.items()), pod("d", "Running")]
    assert reason_of(*pods) == "3/4 nodes: no GPU"


def test_the_autoscalers_and_the_clouds_reasons_follow_the_schedulers() -> None:
    observations = Observations({"a": unscheduled_pod("a", "0/4 nodes: insufficient nvidia.com/gpu")})
    observations.add_event(event("a", "TriggeredScaleUp", "pod triggered scale-up: [{g5 0->2 (max: 8)}]"))
    observations.add_event(event("a", "FailedScheduling", "0/4 nodes: insufficient nvidia.com/gpu"))
    expected = "1/2 nodes: 0/4 nodes: insufficient nvidia.com/gpu; pod triggered scale-up: [{g5 0->2 (max: 8)}]"
    assert waiting_reason(observations, "run-1", 2) == expected
    observations.machine_problem = "scaling group g5: no capacity"
    assert waiting_reason(observations, "run-1", 2) == f"{expected}; scaling group g5: no capacity"
    observations.machine_problem = None
    observations.add_event(event("a", "FailedScaleUp", "Node scale up in zones us-east1-b failed: out of resources"))
    assert "Node scale up in zones us-east1-b failed" in str(waiting_reason(observations, "run-1", 2))
    karpenter = 'Failed to schedule pod, incompatible with nodepool "default", no instance type satisfied resources'
    observations.add_event(event("a", "FailedScheduling", karpenter))
    reason = f"1/2 nodes: 0/4 nodes: insufficient nvidia.com/gpu; {karpenter}"
    assert waiting_reason(observations, "run-1", 2) == reason


def test_a_controller_that_has_no_pod_is_part_of_the_reason_and_its_pod_is_never_that_of_the_run() -> None:
    refused = event("run-1-placement", "FailedCreate", 'serviceaccount "spotmpi-placement" not found')
    assert reason_of(unscheduled_pod("a", "no GPU"), events=(refused,)) == (
        "1/4 nodes: no GPU; no fallback to other node groups: FailedCreate: "
        'serviceaccount "spotmpi-placement" not found'
    )
    assert reason_of(pod("a", "Running"), events=(refused,)) is None
    assert reason_of(events=(event("run-1-placement-abcde", "Pulling", "Pulling image x"),)) == "no pods yet"


def on_node(name: str, node: str, ready: str, phase: str = "Running") -> dict[str, Any]:
    return {**pod(name, phase, conditions=[{"type": "Ready", "status": ready}]), "spec": {"nodeName": node}}


def test_an_unreachable_node_that_delays_the_next_attempt_is_named_with_remedies() -> None:
    dead = event("b", "NodeNotReady", "Node is not ready")
    reason = reason_of(on_node("a", "n-1", "False", "Failed"), on_node("b", "n-2", "False"), events=(dead,), nodes=2)
    assert reason is not None and reason.startswith("1/2 nodes: n-2 does not respond; the run continues when")
    assert "`kubectl delete node n-2`" in reason and "out-of-service=nodeshutdown:NoExecute" in reason


@pytest.mark.parametrize(("other", "ready"), [("Running", "False"), ("Failed", "True")])
def test_an_unreachable_node_is_no_reason_while_others_run_or_when_it_is_back(other: str, ready: str) -> None:
    dead = event("b", "NodeNotReady", "Node is not ready")
    assert reason_of(on_node("a", "n-1", "True", other), on_node("b", "n-2", ready), events=(dead,), nodes=2) is None


def test_an_unreachable_node_is_named_while_others_run_since_only_their_agents_know_whether_its_pod_is_lost() -> None:
    dead = event("b", "NodeNotReady", "Node is not ready")
    others = on_node("a", "n-1", "True"), {**on_node("w", "n-3", "False"), "metadata": worker_metadata("w")}
    seen = observed(*others, on_node("b", "n-2", "False"), events=(dead, event("w", "NodeNotReady", "")))
    reason = lost_node_reason(seen, 2)
    assert reason is not None and reason.startswith(
        "1/2 nodes: n-2 does not respond; a run that waits for it continues"
    )
    assert "`kubectl delete node n-2`" in reason and "n-3" not in reason
    assert lost_node_reason(observed(*others, on_node("b", "n-2", "True"), events=(dead,)), 2) is None


def test_a_scheduled_pod_no_longer_waits_for_a_node() -> None:
    """The reason is that containers are being created, not the scheduler's outdated message."""
    placed = pod("a", conditions=[{"type": "PodScheduled", "status": "True"}])
    refused = event("a", "FailedScheduling", "0/4 nodes: insufficient cpu")
    assert reason_of(placed, events=(refused,)) == "1/4 nodes: containers are being created"


def test_a_containers_own_reason_is_reported() -> None:
    assert reason_of(container("a", "ErrImagePull", 'not found: "x"')) == '1/4 nodes: ErrImagePull: not found: "x"'
    assert reason_of(container("a", "CreateContainerConfigError")) == "1/4 nodes: CreateContainerConfigError:"


def test_a_quota_that_admits_only_some_pods_is_the_reason() -> None:
    quota = event("run-1-node-0", "FailedCreate", "exceeded quota")
    pulled = event("run-1-node-0-0-x7k2p", "Failed", "an earlier pull")
    running = [pod(f"run-1-node-0-{node}-x7k2p", "Running") for node in range(2)]
    assert reason_of(*running, events=(quota, pulled), nodes=3) == "1/3 nodes: FailedCreate: exceeded quota"
    assert reason_of(*running, events=(quota, pulled), nodes=2) is None
    assert reason_of(events=(pulled, quota)) == "FailedCreate: exceeded quota"


def test_a_refused_pod_has_the_same_reason_at_each_try() -> None:
    text = 'Error creating: pods "run-1-node-0-{}" is forbidden: exceeded quota: small'
    failures = [event("run-1-node-0", "FailedCreate", text.format(name)) for name in ("0-x7k2p", "3-9vb4z")]
    assert {reason_of(events=(each,)) for each in failures} == {f"FailedCreate: {text.format('*')}"}


def test_while_a_container_is_created_the_newest_relevant_event_of_its_pod_counts() -> None:
    events = (
        event("a", "Scheduled", "fine"),
        event("a", "FailedMount", "volume x: not found"),
        event("a", "SuccessfulAttachVolume", "fine too"),
        event("b", "FailedMount", "another pod's"),
    )
    creating = container("a", "ContainerCreating")
    assert reason_of(creating, events=events) == "1/4 nodes: FailedMount: volume x: not found"
    assert reason_of(creating) == "1/4 nodes: containers are being created"
    pulling = event("a", "Pulling", 'Pulling image "registry/large:1"')
    assert reason_of(creating, events=(*events, pulling)) == '1/4 nodes: pulling image "registry/large:1"'


@pytest.mark.parametrize("key", ["involvedObject", "regarding"])
def test_without_pods_events_about_the_run_count(key: str) -> None:
    quota = event("run-1-node-0", "FailedCreate", "exceeded quota", key)
    assert reason_of(events=(quota,)) == "FailedCreate: exceeded quota"
    assert reason_of(events=(event("run-2", "FailedCreate", "another run"),)) == "no pods yet"


def test_a_job_that_jobset_may_not_create_is_the_reason() -> None:
    """As JobSet 0.12 says it for a quota, a policy, or a webhook on Jobs that does not answer."""
    refusal = 'job "run-1-node-0" creation failed with error: jobs.batch "run-1-node-0" is forbidden: exceeded quota: q'
    assert reason_of(events=(event("run-1", "JobCreationFailed", refusal),)) == f"JobCreationFailed: {refusal}"


def test_a_claim_without_a_volume_says_why_it_has_none() -> None:
    """The scheduler only knows that it is not bound; messages are those of Kubernetes 1.35."""
    scheduler = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    why = "no persistent volumes available for this claim and no storage class is set"
    about = {"kind": "PersistentVolumeClaim"}
    events = [event(name, "FailedBinding", why) for name in ("runs", "others")]
    observations = Observations({"a": unscheduled_pod("a", scheduler)}, claims=frozenset(["runs"]))
    for each in events:
        observations.add_event({**each, "involvedObject": {**each["involvedObject"], **about}})
    assert waiting_reason(observations, "run-1", 1) == f"1/1 nodes: {scheduler}; claim runs: {why}"
    observations.pods["a"] = unscheduled_pod("a", "0/2 nodes: no GPU")
    assert waiting_reason(observations, "run-1", 1) == "1/1 nodes: 0/2 nodes: no GPU", "its claim is no reason"


def test_a_user_who_may_not_read_events_gets_a_note() -> None:
    observations = Observations({"a": unscheduled_pod("a", "no GPU")}, events_forbidden=True)
    note = "(you are not permitted to read events, which may say more)"
    assert waiting_reason(observations, "run-1", 1) == f"1/1 nodes: no GPU {note}"
    assert waiting_reason(Observations(events_forbidden=True), "run-1", 1) == f"no pods yet {note}"


def test_long_reasons_are_cut_to_one_line() -> None:
    reason = reason_of(unscheduled_pod("a", "very\n long " * 100))
    assert reason is not None and len(reason) < 260 and "\n" not in reason and reason.endswith("...")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600, "10 min"), (599.9, "10 min"), (121, "3 min"), (120, "120 s"), (95, "100 s"), (10, "10 s"), (3.2, "4 s")],
)
def test_the_remaining_time_is_shown_in_steps_that_become_finer(seconds: float, text: str) -> None:
    assert with_countdown("no GPU", seconds) == f"no GPU (gives up in {text})"


def test_a_reason_is_new_by_its_words_and_remaining_time_but_not_by_its_numbers() -> None:
    reason = reason_key("1/9 nodes: 7 Insufficient cpu, 2 node(s) had taint(s) (gives up in 10 min)")
    assert reason_key("2/9 nodes: 3 node(s) had taint(s), 5 Insufficient cpu (gives up in 10 min)") == reason
    assert reason_key("1/9 nodes: 7 Insufficient memory, 2 node(s) had taint(s) (gives up in 10 min)") != reason
    assert reason_key("1/9 nodes: 7 Insufficient cpu, 2 node(s) had taint(s) (gives up in 9 min)") != reason
