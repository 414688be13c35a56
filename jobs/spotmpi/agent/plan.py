"""The plans that agents and supervisors carry out: JSON objects that the submitting side writes, read here.

Where a plan of an older version lacks a key, reading fills it in.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, Optional, TypedDict

VERSION = 1


class Limits(TypedDict):
    """The limits of a run, times in seconds."""

    start: float
    run: Optional[float]
    no_progress: Optional[float]
    failures: int
    interruptions: int
    cost: Optional[float]  # US dollars


class RunPlan(TypedDict):
    """What every plan says of its run."""

    version: int
    run: str
    name: str
    launcher: str
    folder: str  # where commands start
    environment: Dict[str, str]
    limits: Limits
    rate: Optional[float]  # US dollars per hour of all nodes, where known
    grace: float  # seconds for a checkpoint
    metrics_pattern: Optional[str]
    oversubscribed: bool
    work: Dict[str, Any]  # what identifies the work


class Command(TypedDict):
    """The launcher of one node, with variables of its own."""

    node: int
    arguments: List[str]
    environment: Dict[str, str]


class _AttemptPlan(RunPlan):
    commands: List[Command]


class AttemptPlan(_AttemptPlan, total=False):
    """The plan of a run together with the launchers to start on this machine."""

    pid_file: str  # of rank 0; by default in the run folder


class LocalPlan(AttemptPlan):
    """The plan of a run on one machine, read by its supervisor."""

    backend: Literal["local"]
    spec: Dict[str, Any]
    notes: List[str]  # for people


class UserCode(TypedDict):
    """An archive of the user's code in a pod, and what to verify."""

    archive: str
    bytes: int
    sha256: str


# What each node copies before its ranks start; `stage` is "node" or "memory".
StagingPlan = TypedDict("StagingPlan", {"from": str, "to": str, "stage": str})


class Wheels(TypedDict):
    """The wheels of Dask for pods whose image has none: one archive in pieces, and what to verify."""

    name: str  # of the ConfigMaps with the pieces, before their numbers
    folder: str  # where pods have them, by number
    architecture: str
    sha256: str


class PoolPlan(TypedDict):
    """What agents know of the workers of a pool or stream, which are nodes besides those of ``hosts``."""

    workers: int  # at its submission
    table: str  # of the spec that describes them
    driver: Optional[float]  # seconds that a pool stays up without a driver, or None
    gpus: int  # per worker
    environment: Dict[str, str]  # of workers, over that of the run
    versions: Optional[Dict[str, str]]  # of Python and packages of a driver outside of the pods; None where any fit


class _Resumed(TypedDict, total=False):
    attempts_before: int  # of earlier submissions, as far as the terminal knows that resumed the run


class AgentPlan(RunPlan, _Resumed):
    """The plan of a run on a cluster, which every pod finds in its ConfigMap."""

    where: str  # without a launcher: "every" node or the "first"
    slots: int
    hosts: List[str]  # by node index
    rank: List[str]  # the command of each rank
    mpi_args: List[str]
    code: Optional[UserCode]
    staging: Optional[StagingPlan]
    gpus: int  # per node
    submitted: Optional[float]  # Unix seconds by the API server's clock
    files: Dict[str, str]  # texts by name, for the run folder
    machine: Dict[str, str]  # what is known of the nodes before they start
    # Of a run with workers; of a pool, ``hosts`` is node 0 alone, and ``rank`` its driver command.
    pool: Optional[PoolPlan]
    wheels: Optional[Wheels]  # filled in at submission


def with_commands(plan: RunPlan, commands: list[Command], environment: dict[str, str], pid_file: str) -> AttemptPlan:
    """The plan of an attempt: that of its run, with the launchers and the environment of this machine."""
    return {
        "version": plan["version"],
        "run": plan["run"],
        "name": plan["name"],
        "launcher": plan["launcher"],
        "folder": plan["folder"],
        "environment": environment,
        "limits": plan["limits"],
        "rate": plan["rate"],
        "grace": plan["grace"],
        "metrics_pattern": plan["metrics_pattern"],
        "oversubscribed": plan["oversubscribed"],
        "work": plan["work"],
        "commands": commands,
        "pid_file": pid_file,
    }


def read_local_plan(path: str) -> LocalPlan:
    """The plan of a run folder; OSError or ValueError where there is none."""
    plan: LocalPlan = _read(path)
    return plan


def read_agent_plan(path: str) -> AgentPlan:
    """The plan of a pod; OSError or ValueError where there is none."""
    plan: AgentPlan = _read(path)
    plan.setdefault("pool", None)
    plan.setdefault("wheels", None)
    if plan["pool"]:
        plan["pool"].setdefault("versions", None)
    return plan


def _read(path: str) -> Any:
    with open(path) as file:
        values = json.load(file)
    limits = {"cost": None, **values["limits"]}
    return {"version": 0, "rate": None, "oversubscribed": False, **values, "limits": limits}
