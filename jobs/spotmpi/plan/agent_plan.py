"""Makes the agent plan, which every pod of a run finds in its ConfigMap. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from spotmpi.agent import boot, launchers, pod_context, protocol
from spotmpi.agent.plan import VERSION, RunPlan, StagingPlan, UserCode
from spotmpi.core import names
from spotmpi.plan.run_plan import limits, roles, thread_variables
from spotmpi.spec.job import Data, JobSpec
from spotmpi.spec.paths import is_path
from spotmpi.spec.shapes import workers_of
from spotmpi.spec.stream import Stream
from spotmpi.streams.order import Settings

VOLUME = pod_context.VOLUME  # where the run volume is mounted
STAGING_FOLDERS = {"node": f"{pod_context.WORK}/data", "memory": f"{pod_context.MEMORY}/data"}


class AgentInputs(NamedTuple):
    """What the agents get besides the spec."""

    work: dict[str, Any]  # what identifies the run's work
    files: dict[str, str]  # texts by name, for the run folder
    code: UserCode | None = None
    rate: float | None = None  # US dollars per hour of all nodes, where known
    machine: dict[str, str] | None = None  # what is known of the nodes before they start
    versions: dict[str, str] | None = None  # of Python and packages where the run is submitted


def agent_plan(spec: JobSpec, run: str, inputs: AgentInputs) -> RunPlan:
    """The agent plan of *spec*, without the time of submission, which is the API server's."""
    return {
        "version": VERSION,
        "run": run,
        "name": spec.title,
        "launcher": spec.launcher,
        "where": spec.where,
        "slots": spec.slots,
        "hosts": [names.pod_host(run, node) for node in range(spec.nodes)],
        "roles": roles(spec, "python3"),
        "python": "python3",
        "pool_python": None,
        "mpi": {"args": list(spec.mpi.args), "path": None, "family": 0},
        "environment": _environment(spec, run),
        "folder": pod_context.CODE if inputs.code or workers_of(spec) else boot.CODE,
        "code": inputs.code,
        "staging": _staging(spec.data),
        "limits": limits(spec),
        "rate": inputs.rate,
        "grace": spec.checkpoint.grace,
        "metrics_pattern": spec.metrics.pattern,
        "oversubscribed": False,
        "work": inputs.work,
        "files": inputs.files,
        "machine": inputs.machine or {},
        "versions": _driver_versions(spec, inputs.versions),
    }


def _driver_versions(spec: JobSpec, versions: dict[str, str] | None) -> dict[str, str] | None:
    """The *versions* that a pool needs which waits for a driver outside of the pods."""
    return None if spec.pool is None or spec.command or isinstance(spec.limits.driver, str) else versions


def _shared_folder(data: Data) -> str:
    return data.path if data.path.startswith("/") else f"{VOLUME}/{data.path}"


def _staging(data: Data | None) -> StagingPlan | None:
    """What each node copies before its ranks start."""
    if data is None or data.stage is None:
        return None
    return {"from": _shared_folder(data), "to": STAGING_FOLDERS[data.stage], "stage": data.stage}


def _stream_settings(stream: Stream) -> Settings:
    """What ranks and workers need of a stream; a relative source is on the run volume."""
    if not stream.source or not is_path(stream.source) or stream.source.startswith("/"):
        return stream.settings
    return replace(stream.settings, source=f"{VOLUME}/{stream.source}")


def _environment(spec: JobSpec, run: str) -> dict[str, str]:
    folder = f"{pod_context.RUNS}/{run}"
    code = [pod_context.CODE] if spec.code or spec.files else []
    python_path = [*code, boot.CODE, *filter(None, [spec.env.get("PYTHONPATH")])]  # the program needs all of them
    environment = {
        "PYTHONUNBUFFERED": "1",
        "HOME": pod_context.WORK,
        **thread_variables(spec.resources.cpu),
        protocol.ENV_RUN: run,
        protocol.ENV_WORLD_SIZE: str(spec.world_size),
        protocol.ENV_HOSTS: str(spec.nodes),
        protocol.ENV_CHECKPOINT_PATH: names.checkpoints(folder, spec.checkpoint.path),
        protocol.ENV_CHECKPOINT_EVERY: f"{spec.checkpoint.every:g}",
        protocol.ENV_CHECKPOINT_KEEP: str(spec.checkpoint.keep),
        protocol.ENV_TENSORBOARD: f"{folder}/tensorboard",
        **launchers.variables(spec.launcher, spec.resources.gpu),
    }
    if spec.data is not None:
        stage = spec.data.stage
        environment[protocol.ENV_DATA] = STAGING_FOLDERS[stage] if stage else _shared_folder(spec.data)
    if workers_of(spec) is not None:
        environment[protocol.ENV_POOL] = f"tls://{names.pod_host(run, 0)}:{protocol.POOL_PORT}"
        environment[protocol.ENV_POOL_TLS] = pod_context.SECRET
    if spec.stream is not None:
        environment[protocol.ENV_STREAM] = _stream_settings(spec.stream).to_json()
        environment[protocol.ENV_STREAM_FOLDER] = f"{folder}/stream"
    nccl = {f"NCCL_{name}": value for name, value in spec.nccl.items()}
    return {**environment, **nccl, **spec.env, "PYTHONPATH": ":".join(python_path)}
