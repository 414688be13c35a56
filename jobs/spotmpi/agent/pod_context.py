"""What a pod gives its agent: the names of its mounts, variables, annotations and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
MACHINES_GATE = "spotmpi.dev/machines-at-fault"  # of pods whose node affinity does not exclude these yet
WAITS_FOR_NODE_0 = "waiting for node 0: "  # how the line begins with which an agent says why it waits
# The rest of it where node 0 is silent: seconds, attempt, and the seconds after which it counts as lost.
NODE_0_IS_SILENT = (
    "its agent has answered nothing for %.0f s; other nodes end attempt %d after %g s, and the run goes on then"
)


# Seconds from the end of `checkpoint.grace` to SIGKILL, in which an agent kills ranks that have not ended, records the
# attempt, and saves what only memory has. A pod that is killed in place of that counts as failed.
END_TIME = 10


def affinity_without(affinity: dict[str, Any], machines: Sequence[str]) -> dict[str, Any]:
    """The *affinity* of a pod, and to none of *machines*: one of its terms has to hold, all requirements of it."""
    if not machines:
        return affinity
    of_nodes, key = affinity.get("nodeAffinity") or {}, "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (of_nodes.get(key) or {}).get("nodeSelectorTerms") or [{}]
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in machines]  # one in each
    terms = [{**term, "matchFields": [*(term.get("matchFields") or []), *map(dict, others)]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, key: {"nodeSelectorTerms": terms}}}
