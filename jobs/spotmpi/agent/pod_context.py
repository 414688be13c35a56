"""What a pod gives its agent: the paths of its mounts, variables, annotations and labels."""

from __future__ import annotations

import json
import os

from .plan import Member

CONFIG = "/spotmpi/config"  # ConfigMap: the agent plan, code
AGENT_PLAN = "plan.json"  # in the ConfigMap, or in the folder of a job of Slurm
SECRET = "/spotmpi/secret"  # the run's keys
WORK = "/spotmpi/work"  # emptyDir of the agent
MEMORY = "/spotmpi/memory"  # emptyDir in memory, where data is staged or checkpoints are written there
SHARED_MEMORY = "/dev/shm"
WHEELS = "/spotmpi/wheels"  # ConfigMaps with the pieces of the wheels of Dask, by number
POD_INFO = "/spotmpi/pod"  # downward API: annotations
VOLUME = "/spotmpi/volume"  # the run volume, or an emptyDir
RUNS = VOLUME + "/runs"

CODE = "/spotmpi/work/user"  # the user's code; working directory of the command
CODE_ARCHIVE = "user.tgz"  # in the ConfigMap, if it is small enough, or in the folder of a job of Slurm
CODE_STORE = VOLUME + "/code"  # larger archives, by digest, on the run volume

ENV_INDEX = "JOB_COMPLETION_INDEX"
ENV_RESTART_COUNT = "SPOTMPI_RESTART_COUNT"  # how often JobSet, or a job of Slurm, has restarted the gang
ENV_JOB_INDEX = "SPOTMPI_JOB_INDEX"  # where each pod has a Job: the index of that
ENV_JOB_RESTARTS = "SPOTMPI_JOB_RESTARTS"  # and how often JobSet has restarted that Job
ENV_ROLE = "SPOTMPI_ROLE"
CONTROLLER = "placement"  # in place of a role: the pod is not a member, but moves a gang to another node group
LABEL_INDEX = "batch.kubernetes.io/job-completion-index"
LABEL_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
FAILURE_COUNTS = ("batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count")
STOP_ANNOTATION = "spotmpi.dev/stop"
PLACEMENT_ANNOTATION = "spotmpi.dev/placement"  # see `placement.State`
WAITS_FOR_NODE_0 = "waiting for node 0: "  # how the line begins with which an agent says why it waits
# The rest of it where node 0 is silent: seconds, attempt, and the seconds after which it counts as lost.
NODE_0_IS_SILENT = (
    "its agent has answered nothing for %.0f s; other nodes end attempt %d after %g s, and the run goes on then"
)


# Seconds from the end of `checkpoint.grace` to SIGKILL, in which an agent kills ranks that have not ended, records the
# attempt, and saves what only memory has. A pod that is killed in place of that counts as failed.
END_TIME = 10


def member() -> Member:
    """What this pod is at the beginning."""
    return Member(os.environ[ENV_ROLE], int(os.environ[ENV_INDEX]) + _number(ENV_JOB_INDEX))


def restart_count() -> int:
    """How often JobSet has restarted the Job of this pod."""
    return _number(ENV_RESTART_COUNT) + _number(ENV_JOB_RESTARTS)


def is_controller() -> bool:
    """Whether this pod is not a member of the run, but decides where its gang is placed."""
    return os.environ.get(ENV_ROLE) == CONTROLLER


def placement(pod_info: str) -> str | None:
    """Where the gang of this pod is placed, as text; None where it has one place only."""
    return _annotation(pod_info, PLACEMENT_ANNOTATION)


def failure_count(pod_info: str) -> int:
    """How many pods of this index have failed before, from the annotations in *pod_info*."""
    return sum(int(_annotation(pod_info, name) or 0) for name in FAILURE_COUNTS)


def stop_reason(pod_info: str) -> str | None:
    """The reason of a request to stop this run, from the pod's annotations, or None."""
    return _annotation(pod_info, STOP_ANNOTATION)


def _number(variable: str) -> int:
    return int(os.environ.get(variable) or 0)


def _annotation(pod_info: str, name: str) -> str | None:
    """The value of an annotation of this pod, or None."""
    try:
        with open(os.path.join(pod_info, "annotations"), encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key == name:
                    return str(json.loads(value))
    except (OSError, ValueError):
        pass
    return None
