"""The workers of a pool or stream on a cluster: an Indexed Job for each role, owned by the JobSet of the gang. Pure.

They are not a second replicated Job of the JobSet, which could not restart the gang without them, nor grow.
"""

from __future__ import annotations

import math

from spotmpi.agent import protocol
from spotmpi.agent.plan import WORKER
from spotmpi.plan import pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.templates import Object
from spotmpi.spec.job import JobSpec
from spotmpi.spec.roles import worker_spec
from spotmpi.spec.workers import Workers

ANNOTATION_WORKERS = "spotmpi.dev/workers"  # how many of the role `WORKER` a run is to have


def workers_job(spec: JobSpec, own: Workers, target: ClusterTarget, run: str) -> Object:
    """The spec of the Job of a run's workers in one role, suspended like its JobSet.

    A pod that is lost with its node, or that got SIGTERM, comes back and counts nowhere; other failures of an index
    count up to ``limits.interruptions``. Where a worker finds that no pod of the run can work, all of them end.
    """
    workers = worker_spec(spec, own)
    job: Object = {
        **sizes(workers.nodes),
        "suspend": True,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": spec.limits.interruptions,
        "podFailurePolicy": {
            "rules": [
                pods.on_exit("FailJob", protocol.NOT_RETRYABLE),
                pods.on_exit("Ignore", protocol.INTERRUPTED),
                pods.on_disruption("Ignore"),
            ]
        },
        "template": pods.template(workers, target, run, own.role),
    }
    if spec.limits.run is not None:
        job["activeDeadlineSeconds"] = math.ceil(spec.limits.run + spec.limits.start)
    return job


def sizes(workers: int) -> Object:
    """The fields of a Job that change together when the number of workers does."""
    return {"parallelism": workers, "completions": workers}


def annotation(role: str) -> str:
    """The annotation of a JobSet with the number of workers in a role, which a resize changes."""
    return ANNOTATION_WORKERS if role == WORKER else f"spotmpi.dev/{role}-workers"
