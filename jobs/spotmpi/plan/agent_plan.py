"""Makes the agent plan, which every pod of a run finds in its ConfigMap. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spotmpi.agent import boot, pod_context, protocol
from spotmpi.agent.plan import VERSION, RunPlan, StagingPlan, UserCode
from spotmpi.core import names
from spotmpi.plan.run_plan import elastic, limits, preload, rank_variables, roles
from spotmpi.spec.job import Data, JobSpec
from spotmpi.spec.source import is_path
from spotmpi.spec.stream import Stream
from spotmpi.streams.order import Settings

VOLUME = pod_context.VOLUME  # where the run volume is mounted


class Layout(NamedTuple):
    """Where agents and ranks have what their plan names."""

    hosts: Sequence[str]  # by node index; empty names where only agents learn them
    folder: str  # the run folder
    volume: str  # what relative paths of data and of a stream's source are relative to
    work: str  # of each node alone
    memory: str  # of each node alone, in memory
    package: str  # the folder with this package
    code: str  # the user's code
    start: str  # where a command starts that comes without code
    secret: str
    environment: Mapping[str, str]  # more variables of ranks
    forks: bool = True  # whether a fork server's ranks have all that those of the launcher have


def pod_layout(run: str, nodes: int, job_per_node: bool = False) -> Layout:
    """That of pods."""
    return Layout(
        hosts=[names.pod_host(run, node, job_per_node) for node in range(nodes)],
        folder=f"{pod_context.RUNS}/{run}",
        volume=VOLUME,
        work=pod_context.WORK,
        memory=pod_context.MEMORY,
        package=boot.CODE,
        code=pod_context.CODE,
        start=boot.CODE,
        secret=pod_context.SECRET,
        environment={"HOME": pod_context.WORK},
    )


class AgentInputs(NamedTuple):
    """What the agents get besides the spec."""

    work: dict[str, Any]  # what identifies the run's work
    files: dict[str, str]  # texts by name, for the run folder
    code: UserCode | None = None
    rate: float | None = None  # US dollars per hour of all nodes, where known
    machine: dict[str, str] | None = None  # what is known of the nodes before they start
    versions: dict[str, str] | None = None  # of Python and packages where the run is submitted


def agent_plan(spec: JobSpec, run: str, inputs: AgentInputs, layout: Layout | None = None) -> RunPlan:
    """The agent plan of *spec*, by default for pods, without the time of submission."""
    layout = layout or pod_layout(run, spec.nodes)
    modules = preload(spec) if layout.forks else []
    plan: RunPlan = {
        "version": VERSION,
        "run": run,
        "name": spec.title,
        "launcher": spec.launcher,
        "run_on": spec.run_on,
        "slots": spec.slots,
        "hosts": list(layout.hosts),
        "roles": roles(spec, "python3"),
        "python": "python3",
        "pool_python": None,
        "mpi": {"args": list(spec.mpi.args), "path": None, "family": 0},
        "environment": _environment(spec, run, layout),
        "folder": layout.code if inputs.code or spec.workers else layout.start,
        "code": inputs.code,
        "staging": _staging(spec.data, layout),
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
    more: Any = {**elastic(spec), **({"preload": modules} if modules else {})}
    return {**plan, **more}


def _driver_versions(spec: JobSpec, versions: dict[str, str] | None) -> dict[str, str] | None:
    """The *versions* that a pool needs which waits for a driver outside of the pods."""
    return None if spec.pool is None or spec.command or isinstance(spec.limits.driver, str) else versions


def _shared_folder(path: str, layout: Layout) -> str:
    return path if path.startswith("/") else f"{layout.volume}/{path}"


def _staged_folder(stage: str, layout: Layout) -> str:
    return f"{layout.memory if stage == 'memory' else layout.work}/data"


def _staging(data: Data | None, layout: Layout) -> StagingPlan | None:
    """What each node copies before its ranks start."""
    if data is None or data.stage is None:
        return None
    return {
        "from": _shared_folder(data.path, layout),
        "to": _staged_folder(data.stage, layout),
        "stage": data.stage,
    }


def _stream_settings(stream: Stream, volume: str) -> Settings:
    """What ranks and workers need of a stream; a relative source is on the run volume."""
    if not stream.source or not is_path(stream.source) or stream.source.startswith("/"):
        return stream.settings
    return stream.settings._replace(source=f"{volume}/{stream.source}")


def _environment(spec: JobSpec, run: str, layout: Layout) -> dict[str, str]:
    """The variables of ranks and of workers; those of the spec come last."""
    code = [layout.code] if spec.code or spec.files else []
    python_path = [*code, layout.package, *filter(None, [spec.env.get("PYTHONPATH")])]  # the program needs all of them
    environment = {
        **layout.environment,
        **rank_variables(spec, run, layout.folder, f"{layout.memory}/checkpoints"),
        protocol.ENV_HOSTS: str(spec.nodes),
    }
    if spec.data is not None:
        stage = spec.data.stage
        shared = _shared_folder(spec.data.path, layout)
        environment[protocol.ENV_DATA] = _staged_folder(stage, layout) if stage else shared
    if spec.init is not None:
        environment[protocol.ENV_INIT] = _shared_folder(spec.init, layout)
    if spec.workers:
        environment[protocol.ENV_POOL] = f"tls://{layout.hosts[0]}:{protocol.POOL_PORT}"
        environment[protocol.ENV_POOL_TLS] = layout.secret
    if spec.stream is not None:
        environment[protocol.ENV_STREAM] = _stream_settings(spec.stream, layout.volume).to_json()
        environment[protocol.ENV_STREAM_FOLDER] = f"{layout.folder}/stream"
    nccl = {f"NCCL_{name}": value for name, value in spec.nccl.items()}
    return {**environment, **nccl, **spec.env, "PYTHONPATH": ":".join(python_path)}
