"""The context of a pod's agent: its node index, its folders and what was mounted for it."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from . import launchers
from .plan import AgentPlan, read_agent_plan
from .tls import Identity

CONFIG = "/spotmpi/config"  # ConfigMap: plan.json, code
SECRET = "/spotmpi/secret"  # the run's keys
WORK = "/spotmpi/work"  # emptyDir of the agent
MEMORY = "/spotmpi/memory"  # emptyDir in memory, where data is staged there
WHEELS = "/spotmpi/wheels"  # ConfigMaps with the pieces of the wheels of Dask, by number
POD_INFO = "/spotmpi/pod"  # downward API: annotations
VOLUME = "/spotmpi/volume"  # the run volume, or an emptyDir
RUNS = VOLUME + "/runs"

CODE = "/spotmpi/work/user"  # the user's code; working directory of the command
CODE_ARCHIVE = "user.tgz"  # in the ConfigMap, if it is small enough
CODE_STORE = VOLUME + "/code"  # larger archives, by digest, on the run volume

ENV_NODE = "JOB_COMPLETION_INDEX"
ENV_GENERATION = "SPOTMPI_GENERATION"  # how often JobSet has restarted the gang
ENV_ROLE = "SPOTMPI_ROLE"
WORKER = "worker"  # the role of the workers of a pool or stream; other pods have none
FAILURE_COUNTS = ("batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count")
STOP_ANNOTATION = "spotmpi.dev/stop"


class PodContext(NamedTuple):
    """One pod of a run."""

    plan: AgentPlan
    node: int
    generation: int  # how many pods of this node there were before; of a gang's, how often it was restarted
    identity: Identity
    folder: str  # the run folder

    @property
    def is_coordinator(self) -> bool:
        """Whether this is node 0."""
        return self.node == 0

    @property
    def worker(self) -> int | None:
        """The number of this worker of a pool or stream; None on the nodes of the gang, the run's other nodes."""
        number = self.node - len(self.hosts)
        return number if number >= 0 else None

    @property
    def has_launcher(self) -> bool:
        """Whether this node starts a launcher of its own."""
        return self.node < self.launcher_count

    @property
    def launcher_count(self) -> int:
        """How many nodes start a launcher of their own."""
        return launchers.start_count(self.plan["launcher"], len(self.hosts), self.plan["where"])

    @property
    def hosts(self) -> list[str]:
        """The host name of every node of the gang, by node index."""
        return self.plan["hosts"]

    @property
    def submitted(self) -> float:
        """When the run was submitted, in Unix seconds by the API server's clock."""
        submitted = self.plan["submitted"]
        assert submitted is not None
        return submitted

    @property
    def environment_file(self) -> str:
        """Where the environment of this pod's ranks is written."""
        return os.path.join(WORK, "environment.json")

    @property
    def pid_file(self) -> str:
        """Where rank 0 writes its process id, if it runs here; not in a folder that nodes share."""
        return os.path.join(WORK, "rank-0.pid")

    @property
    def launchers_ended_file(self) -> str:
        """What exists on node 0 once the launchers of all other nodes have ended."""
        return os.path.join(WORK, "launchers-ended")

    @property
    def ssh_folder(self) -> str:
        """The folder of the SSH keys and configurations."""
        return os.path.join(WORK, "ssh")


def read_context() -> PodContext:
    """This pod, from its environment and mounts."""
    plan = read_agent_plan(os.path.join(CONFIG, "plan.json"))
    node, generation = int(os.environ[ENV_NODE]), int(os.environ.get(ENV_GENERATION) or 0)
    if os.environ.get(ENV_ROLE) == WORKER and plan["pool"]:
        pool = plan["pool"]
        environment = {**plan["environment"], **pool["environment"]}
        plan = {**plan, "gpus": pool["gpus"], "environment": environment}
        node += len(plan["hosts"])
        generation = sum(int(_annotation(name) or 0) for name in FAILURE_COUNTS)
    return PodContext(plan, node, generation, Identity(plan["run"], SECRET), os.path.join(RUNS, plan["run"]))


def stop_reason() -> str | None:
    """The reason of a request to stop this run, from the pod's annotations, or None."""
    return _annotation(STOP_ANNOTATION)


def _annotation(name: str) -> str | None:
    """The value of an annotation of this pod, or None."""
    try:
        with open(os.path.join(POD_INFO, "annotations")) as file:
            for line in file:
                key, _, value = line.partition("=")
                if key == name:
                    return str(json.loads(value))
    except (OSError, ValueError):
        pass
    return None
