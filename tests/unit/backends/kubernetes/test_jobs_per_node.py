"""Runs whose nodes have a Job each, as followers, faults and `status` see them."""

from __future__ import annotations

import asyncio

import pytest

from spotmpi.agent import pod_context
from spotmpi.agent.plan import NODE, STANDBY, Member
from spotmpi.backends.kill_ranks import NotRunning
from spotmpi.backends.kubernetes import stop
from spotmpi.backends.kubernetes.fault_injection import inject_fault, pod_of
from spotmpi.backends.kubernetes.follow.jobset import (
    LABELS_RESTARTS,
    RUNNING,
    add_restart_counts,
    has_predecessors,
    member_of,
)
from spotmpi.backends.kubernetes.follow.waiting import Observations, standby_waiting_reason, waiting_reason
from spotmpi.core import names
from spotmpi.runs.reader import RunState
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, a_pod, event, jobset
from tests.cloud.cluster.store import Object
from tests.unit.backends.kubernetes.following import look


def own_pod(node: int, phase: str = "Running", restarts: int = 0) -> Object:
    """The pod of a node that has a Job to itself, with the labels of JobSet 0.12."""
    labels = {names.LABEL_RUN: RUN, pod_context.LABEL_INDEX: "0", pod_context.LABEL_JOB_INDEX: str(node)}
    labels[names.LABEL_ROLE] = NODE
    labels |= dict(zip(LABELS_RESTARTS, ("0", str(restarts)), strict=True))
    return a_pod(f"{names.pod_host(RUN, node, job_per_node=True)}-abcde", phase, labels)


def own_jobs(nodes: int, standby: int = 0, **status: object) -> Object:
    """The JobSet of such a run."""
    values = jobset(nodes=nodes, status=status)
    (replicated,) = values["spec"]["replicatedJobs"]
    replicated["replicas"], replicated["template"]["spec"]["completions"] = nodes, 1
    if standby:
        values["spec"]["replicatedJobs"].append({**replicated, "name": STANDBY, "replicas": standby})
    return values


def standby_pod(index: int, phase: str = "Running", **status: object) -> Object:
    """A pod that stands by for lost nodes."""
    labels = {names.LABEL_RUN: RUN, pod_context.LABEL_INDEX: "0", pod_context.LABEL_JOB_INDEX: str(index)}
    labels[names.LABEL_ROLE] = STANDBY
    pod = a_pod(f"{names.standby_host(RUN, index)}-abcde", phase, labels)
    pod["status"] |= status
    return pod


def test_a_pod_is_found_by_its_role_and_its_number_in_that(cluster: FakeCluster) -> None:
    cluster.put(own_jobs(2, standby=2), *map(own_pod, (0, 1)), *map(standby_pod, (0, 1)))
    for member in (Member(role, number) for role in (NODE, STANDBY) for number in (0, 1)):
        assert member_of(asyncio.run(pod_of(cluster.api(), RUN, member))) == member


def test_the_run_goes_on_without_pods_that_stand_by_for_which_there_is_no_room() -> None:
    scheduler = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    unscheduled = [{"type": "PodScheduled", "status": "False", "message": scheduler}]
    seen = Observations(pods={"0": own_pod(0), "1": own_pod(1), "s": standby_pod(0, "Pending", conditions=unscheduled)})
    assert waiting_reason(seen, RUN, 2) is None
    assert standby_waiting_reason(seen) == f"1/1 standby pods: {scheduler}; the run goes on without"
    seen.pods["s"] = standby_pod(0)
    assert standby_waiting_reason(seen) is None


def test_the_index_of_a_node_is_that_of_its_job() -> None:
    assert [str(member_of(own_pod(node))) for node in (0, 1, 12)] == ["node 0", "node 1", "node 12"]
    assert [has_predecessors(own_pod(1, restarts=count)) for count in (0, 1)] == [False, True]


def test_a_fault_meets_the_node_that_was_named(cluster: FakeCluster) -> None:
    cluster.put(own_jobs(3), *map(own_pod, (0, 2)), own_pod(1, "Pending"))
    for node in (Member(NODE, 0), Member(NODE, 2)):
        assert member_of(asyncio.run(pod_of(cluster.api(), RUN, node))) == node
    with pytest.raises(NotRunning, match="node 1 of run"):
        asyncio.run(pod_of(cluster.api(), RUN, Member(NODE, 1)))
    asyncio.run(inject_fault(cluster.api(), RUN, Member(NODE, 2), "delete"))
    assert cluster.deleted == [own_pod(2)["metadata"]["name"]]


def test_a_stop_is_requested_of_node_0_alone(cluster: FakeCluster) -> None:
    cluster.put(own_jobs(2), *map(own_pod, (0, 1)))
    cluster.on_request = lambda request: cluster.put(own_pod(0, "Succeeded")) if request.verb == "patch" else None
    asyncio.run(stop.request_stop(cluster.api(), RUN, "enough"))
    assert [name for kind, name, _ in cluster.patched if kind == "Pod"] == [own_pod(0)["metadata"]["name"]]


def test_restarts_of_node_0_alone_are_attempts_that_no_agent_may_have_recorded() -> None:
    jobs = {"name": "node", "jobRestarts": [2, 5], "jobRestartsCountTowardsMax": [1, 0]}
    state = add_restart_counts(RunState(RUN, "", "", "running"), own_jobs(2, replicatedJobsStatus=[jobs]), 0, False)
    assert (state.attempt, state.failures, state.interruptions) == (3, 1, 1)


def test_a_run_that_waits_for_the_pod_of_a_dead_node_names_the_node_and_the_remedies(cluster: FakeCluster) -> None:
    """Its other pods stay, unlike those of a run that starts all of them anew."""
    lost = own_pod(1)
    lost["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    lost["spec"]["nodeName"] = "n-1"
    about = {"kind": "Pod", "name": lost["metadata"]["name"]}
    cluster.put(own_pod(0), lost, event(about, "NodeNotReady", "Node is not ready"))
    (waiting,) = look(cluster, own_jobs(2))
    assert waiting.values[RUNNING] and str(waiting.reason).startswith("1/2 nodes: n-1 does not respond; a run that")
    assert "`kubectl delete node n-1`" in str(waiting.reason)


def test_what_a_run_waits_for_is_told_of_each_job() -> None:
    seen = Observations(pods={"a": own_pod(0)})
    about = {"kind": "Job", "name": names.job_name(RUN, 1)}
    text = f'pods "{names.job_name(RUN, 1)}-0-x7k2p" is forbidden: exceeded quota'
    seen.add_event(event(about, "FailedCreate", text))
    reason = waiting_reason(seen, RUN, 2)
    assert reason == f'1/2 nodes: FailedCreate: pods "{names.job_name(RUN, 1)}-*" is forbidden: exceeded quota'
    seen.pods.clear()
    assert waiting_reason(seen, RUN, 2) == reason.removeprefix("1/2 nodes: ")
