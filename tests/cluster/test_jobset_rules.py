"""What the real JobSet does with the Jobs of a run that has one for each node, without nodes: tests end the Jobs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotmpi.agent import pod_context, protocol
from spotmpi.agent.plan import STANDBY
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.submit.adaptation import restart_obstacle
from spotmpi.core import names
from spotmpi.plan import manifests
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.spec.source import from_values
from tests.testbed.control_plane import ControlPlane
from tests.testbed.jobset import JobSet
from tests.testbed.kubernetes import Kubernetes, Object
from tests.testbed.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RUN, NODES = "x-1", 3
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
EXIT = "Container node for pod here/x-1-node-0-0-abcde failed with exit code %d matching FailJob rule at index 0"
FAILED, COMPLETE = ("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")


class Jobs:
    """The Jobs of one run, as an API server and the controller of JobSets have them."""

    def __init__(self, plane: ControlPlane, standby: int = 0) -> None:
        self._kubernetes = Kubernetes(plane.kubeconfig)
        target = ClusterTarget("default", "any:1", None, {}, (), False, job_per_node=True)
        spec = from_values({"command": ["x"], "nodes": NODES, "standby": standby, "launcher": "mpirun"})
        run = manifests.kubernetes_plan(spec, target, manifests.Submission(RUN, "ann", {}, {}, {}))[0]
        self._kubernetes.apply({**run, "spec": {**run["spec"], "suspend": False}}, namespace="default")
        wait_for("all Jobs are there", lambda: len(self.uids()) == NODES)

    def uids(self) -> dict[int, str]:
        """The uid of each Job, by node, and after them those of pods that stand by; deleted ones are collected."""
        found = {}
        for job in self._kubernetes.get("jobs", "-n", "default")["items"]:
            if job["metadata"].get("deletionTimestamp"):
                self._patch(job["metadata"]["name"], {"metadata": {"finalizers": None}})
            labels = job["metadata"]["labels"]
            first = NODES if labels[REPLICATED_JOB] == STANDBY else 0
            found[first + int(labels[pod_context.LABEL_JOB_INDEX])] = job["metadata"]["uid"]
        return found

    def start(self, node: int) -> None:
        """Let a node's pod be ready."""
        self._set_status(node, {"active": 1, "ready": 1})

    def end(self, node: int, kinds: tuple[str, str], reason: str, message: str) -> None:
        """End a node's Job, as the controller of Jobs does."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        status: Object = {"startTime": now, "conditions": [{"type": kind, **condition} for kind in kinds]}
        status |= {"completionTime": now, "succeeded": 1} if kinds == COMPLETE else {"failed": 1}
        self._set_status(node, {"active": 0, "ready": 0, **status})

    def wait_until_replaced(self, node: int, uid: str) -> None:
        """Wait until a node has another Job than that with *uid*."""
        wait_for(f"node {node} has another Job", lambda: self.uids().get(node, uid) != uid)

    def status(self) -> Object:
        """What the JobSet says of itself."""
        status: Object = self._kubernetes.get("jobset", RUN, "-n", "default")["status"]
        return status

    def counts(self) -> dict[str, Object]:
        """What the JobSet says of its replicated Jobs, by name; it has them in any order."""
        return {each["name"]: each for each in self.status()["replicatedJobsStatus"]}

    def _set_status(self, node: int, status: Object) -> None:
        name = names.job_name(RUN, node) if node < NODES else names.standby_name(RUN, node - NODES)
        self._patch(name, {"status": status}, "--subresource=status")

    def _patch(self, job: str, values: Object, *options: str) -> None:
        command = ("patch", "job", job, "-n", "default", "--type=merge", "-p", json.dumps(values), *options)
        self._kubernetes.try_kubectl(*command)


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobSet]:
    """The controller of JobSets at an API server with nothing else."""
    plane = ControlPlane(tmp_path, alone=True)
    plane.start()
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    jobset = JobSet(plane)
    try:
        jobset.start()
        jobset.wait_until_ready()
        yield jobset
    finally:
        jobset.stop()
        plane.stop()


def obstacle() -> str | None:
    return asyncio.run(restart_obstacle(ClusterApi(None, "default"), RUN, NODES))


def test_one_job_alone_is_restarted_and_node_0_ends_the_run(controller: JobSet) -> None:
    assert obstacle() is None
    jobs = Jobs(controller.plane)
    interrupted = EXIT % protocol.INTERRUPTED
    for node, reason, message in (
        (1, "PodFailurePolicy", interrupted),
        (0, "PodFailurePolicy", interrupted),
        (2, "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
    ):
        before = jobs.uids()
        jobs.end(node, FAILED, reason, message)
        jobs.wait_until_replaced(node, before[node])
        assert {other: uid for other, uid in jobs.uids().items() if before[other] == uid}.keys() == {0, 1, 2} - {node}
    (counts,) = jobs.status()["replicatedJobsStatus"]
    assert (counts["jobRestarts"], counts["jobRestartsCountTowardsMax"]) == ([1, 1, 1], [0, 0, 1])

    jobs.end(0, COMPLETE, "CompletionsReached", "")

    wait_for("the run is over", lambda: jobs.status().get("terminalState") == "Completed")
    wait_for("other Jobs are gone", lambda: jobs.uids().keys() == {0})


def test_pods_stand_by_once_all_nodes_have_theirs_and_count_towards_no_limit(controller: JobSet) -> None:
    jobs = Jobs(controller.plane, standby=1)
    for node in (0, 1):
        jobs.start(node)
    wait_for("two are ready", lambda: jobs.counts()["node"]["ready"] == 2)
    assert jobs.uids().keys() == {0, 1, 2}, "it would take the room of a node"
    jobs.start(2)
    wait_for("one stands by", lambda: jobs.uids().keys() == {0, 1, 2, 3})

    for node, reason, message in (
        (1, "PodFailurePolicy", EXIT % protocol.INTERRUPTED),
        (3, "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        (3, "PodFailurePolicy", EXIT % protocol.INTERRUPTED),
    ):
        before = jobs.uids()
        jobs.end(node, FAILED, reason, message)
        jobs.wait_until_replaced(node, before[node])
        if node < NODES:
            jobs.start(node)
        assert {other for other, uid in jobs.uids().items() if before[other] == uid} == {0, 1, 2, 3} - {node}
    counts = jobs.counts()
    assert (counts["node"]["jobRestarts"], counts["standby"]["jobRestarts"]) == ([0, 1, 0], [2])

    before = jobs.uids()
    jobs.end(0, FAILED, "PodFailurePolicy", EXIT % protocol.INTERRUPTED)
    jobs.wait_until_replaced(0, before[0])
    jobs.end(3, FAILED, "PodFailurePolicy", EXIT % protocol.INTERRUPTED)
    wait_for("none stands by", lambda: 3 not in jobs.uids())
    time.sleep(3)
    assert jobs.uids().keys() == {0, 1, 2}, "its room is for node 0"
    jobs.start(0)
    wait_for("one stands by", lambda: jobs.uids().keys() == {0, 1, 2, 3})
    counts = jobs.counts()
    assert not any(sum(each.get("jobRestartsCountTowardsMax", [])) for each in counts.values())

    jobs.end(0, COMPLETE, "CompletionsReached", "")
    wait_for("the run is over", lambda: jobs.status().get("terminalState") == "Completed")
    wait_for("other Jobs are gone", lambda: jobs.uids().keys() == {0})


def test_a_job_that_cannot_work_ends_the_run(controller: JobSet) -> None:
    jobs = Jobs(controller.plane)
    jobs.end(2, FAILED, "PodFailurePolicy", EXIT % protocol.NOT_RETRYABLE)
    wait_for("the run is over", lambda: jobs.status().get("terminalState") == "Failed")


def test_without_its_feature_gate_jobset_says_that_it_restarts_no_single_jobs(controller: JobSet) -> None:
    with controller.without_restarting_jobs():
        assert "not allowed when RestartJob feature gate" in str(obstacle())
    assert obstacle() is None
