"""What the agents of a run are told: the plan that every pod finds in its ConfigMap. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from spotmpi.agent import boot, pod_context, protocol
from spotmpi.core import names
from spotmpi.spec.job import Data, JobSpec

VOLUME = "/spotmpi/volume"  # where the run volume is mounted


STAGED = {"node": f"{pod_context.WORK}/data", "memory": f"{pod_context.MEMORY}/data"}


class Shipped(NamedTuple):
    """What goes to the agents besides the spec."""

    work: dict[str, Any]  # what identifies the run's work
    files: dict[str, str]  # texts by name, for the run folder
    code: dict[str, Any] | None = None  # the user's: path of its `archive`, and its `bytes` and `sha256`
    rate: float | None = None  # US dollars per hour of all nodes, where known
    machine: dict[str, str] | None = None  # what is known of the nodes beforehand


def pod_plan(spec: JobSpec, run: str, shipped: Shipped) -> dict[str, Any]:
    """The agents' plan of *spec* as plain JSON values, but for the time of submission, which the API server says."""
    return {
        "run": run,
        "name": spec.title,
        "launcher": spec.launcher,
        "where": spec.where,
        "slots": spec.slots,
        "hosts": [names.pod_host(run, node) for node in range(spec.nodes)],
        "rank": _rank(spec),
        "mpi_args": list(spec.mpi.args),
        "environment": _environment(spec, run),
        "folder": pod_context.CODE if shipped.code else boot.CODE,
        "code": shipped.code,
        "staging": _staging(spec.data),
        "limits": dict(spec.limits),
        "rate": shipped.rate,
        "grace": spec.checkpoint.grace,
        "metrics_pattern": spec.metrics.pattern,
        "gpus": spec.resources.gpu * spec.slots,
        "oversubscribed": False,
        "submitted": None,
        "work": shipped.work,
        "files": shipped.files,
        "machine": shipped.machine or {},
    }


def _shared(data: Data) -> str:
    return data.path if data.path.startswith("/") else f"{VOLUME}/{data.path}"


def _staging(data: Data | None) -> dict[str, str] | None:
    """What each node copies before its ranks start: ``from`` where, ``to`` where, and which ``stage`` that is."""
    if data is None or data.stage is None:
        return None
    return {"from": _shared(data), "to": STAGED[data.stage], "stage": data.stage}


def _rank(spec: JobSpec) -> list[str]:
    if spec.program:
        assert spec.image is not None
        return ["python3", "-m", names.program_module(spec.image, spec.program), *spec.args]
    assert spec.command is not None
    return [*spec.command, *spec.args]


def _environment(spec: JobSpec, run: str) -> dict[str, str]:
    threads = str(spec.resources.cpu)
    folder = f"{pod_context.RUNS}/{run}"
    environment = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": f"{pod_context.CODE}:{boot.CODE}" if spec.code else boot.CODE,
        "HOME": pod_context.WORK,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        protocol.ENV_RUN: run,
        protocol.ENV_WORLD_SIZE: str(spec.world_size),
        protocol.ENV_HOSTS: str(spec.nodes),
        protocol.ENV_CHECKPOINT_PATH: names.checkpoints(folder, spec.checkpoint.path),
        protocol.ENV_CHECKPOINT_EVERY: f"{spec.checkpoint.every:g}",
        protocol.ENV_CHECKPOINT_KEEP: str(spec.checkpoint.keep),
        protocol.ENV_TENSORBOARD: f"{folder}/tensorboard",
    }
    if spec.data is not None:
        environment[protocol.ENV_DATA] = STAGED[spec.data.stage] if spec.data.stage else _shared(spec.data)
    nccl = {f"NCCL_{name}": value for name, value in spec.nccl.items()}
    return {**environment, **nccl, **spec.env}
