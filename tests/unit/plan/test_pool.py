"""A pool's workers as a Kubernetes Job: what becomes of pods that end, and what differs from node 0."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotmpi.agent import pod_context, protocol
from spotmpi.core import names
from spotmpi.plan import manifests, pool
from spotmpi.plan.pods import CONTAINER
from tests.unit.plan.test_manifests import POOL, SMALL, plan

Object = dict[str, Any]


def workers(values: Object = POOL) -> Object:
    job = plan(values)[-1]
    assert job["kind"] == "Job" and job["metadata"]["name"] == "digits-1-workers"
    return job


def action(job: Object, exit_code: int | None, *conditions: str) -> str:
    """What Kubernetes does with a pod that failed: the first rule that fits (batch/v1, PodFailurePolicy)."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == CONTAINER and exit_code in codes["values"]:
            return str(rule["action"])
        if {each["type"] for each in rule.get("onPodConditions", [])} & {*conditions}:
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize(
    ("exit_code", "conditions", "expected"),
    [
        (protocol.INTERRUPTED, (), "Ignore"),
        (None, ("DisruptionTarget",), "Ignore"),
        (137, ("DisruptionTarget",), "Ignore"),
        (protocol.NOT_RETRYABLE, (), "FailJob"),
        (137, (), "Count"),
        (protocol.FAILED, (), "Count"),
    ],
)
def test_reclaimed_workers_come_back_uncounted_and_hopeless_ones_end_the_job(
    exit_code: int | None, conditions: tuple[str, ...], expected: str
) -> None:
    job = workers()
    assert action(job, exit_code, *conditions) == expected
    assert job["spec"]["backoffLimitPerIndex"] == POOL["limits"]["interruptions"]


def test_the_workers_are_suspended_queued_and_owned_like_node_0() -> None:
    jobset, job = plan(POOL)[0], workers()
    assert jobset["spec"]["suspend"] is job["spec"]["suspend"] is True
    assert jobset["metadata"]["labels"] == job["metadata"]["labels"]
    assert job["metadata"]["labels"][manifests.LABEL_QUEUE] == "gpus"
    (owner,) = job["metadata"]["ownerReferences"]
    assert owner["kind"] == "JobSet" and "controller" not in owner, "Kueue would not admit what another object controls"


def test_node_0_and_workers_have_resources_of_their_own_and_the_same_network_policy() -> None:
    objects = plan(POOL)
    node_0, worker = manifests.pod_template(objects[0]), workers()["spec"]["template"]
    requests = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in (node_0, worker)]
    assert requests == [{"cpu": "1"}, {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}]
    assert names.LABEL_ROLE not in node_0["metadata"]["labels"]
    assert worker["metadata"]["labels"] == node_0["metadata"]["labels"] | {
        names.LABEL_ROLE: names.WORKER,
        names.LABEL_FIRST_NODE: "1",
    }
    selector = next(part for part in objects if part["kind"] == "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert selector.items() <= worker["metadata"]["labels"].items()


def test_agents_find_the_scheduler_and_its_certificates() -> None:
    agents = json.loads(plan(POOL)[1]["data"]["plan.json"])
    assert agents["hosts"] == ["digits-1-node-0-0"] and agents["rank"] == ["python3", "scan.py"]
    assert agents["environment"][protocol.ENV_POOL] == f"tls://digits-1-node-0-0:{protocol.POOL_PORT}"
    assert agents["environment"][protocol.ENV_POOL_TLS] == pod_context.SECRET
    assert agents["pool"]["environment"]["OMP_NUM_THREADS"] == "2" and agents["pool"]["gpus"] == 1


def test_the_number_of_workers_is_read_from_the_jobset_alone() -> None:
    assert pool.worker_count(plan(POOL)[0]) == 8
    assert pool.worker_count(plan(SMALL)[0]) is None
    assert pool.sizes(3) == {"parallelism": 3, "completions": 3}
