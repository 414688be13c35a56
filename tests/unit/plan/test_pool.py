"""A pool's workers as a Kubernetes Job: what becomes of pods that end, and how many there are."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.plan import cluster_plan, pool
from spotmpi.plan.pods import CONTAINER
from tests.unit.plan.test_manifests import POOL, SMALL, plan

Object = dict[str, Any]


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
    job = plan(POOL)[-1]
    assert action(job, exit_code, *conditions) == expected
    assert job["spec"]["backoffLimitPerIndex"] == POOL["limits"]["interruptions"]


def test_no_other_object_controls_the_job_of_workers_which_kueue_would_not_admit() -> None:
    (owner,) = plan(POOL)[-1]["metadata"]["ownerReferences"]
    assert owner["kind"] == "JobSet" and "controller" not in owner


def test_the_number_of_workers_is_read_from_the_jobset_alone() -> None:
    assert cluster_plan.worker_count(plan(POOL)[0]) == 8
    assert cluster_plan.worker_count(plan(SMALL)[0]) is None
    assert pool.sizes(3) == {"parallelism": 3, "completions": 3}
