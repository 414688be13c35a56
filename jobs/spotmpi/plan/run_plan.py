"""What the plans of runs everywhere have in common: their roles, limits and commands. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spotmpi.agent import launchers, protocol
from spotmpi.agent.plan import EACH, GANG, NODE, Elastic, Limits, Role
from spotmpi.core import names
from spotmpi.spec.job import POOL, seconds

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec


def roles(spec: JobSpec, python: str) -> list[Role]:
    """The roles of a run: its gang, and its workers by role if it has any; *python* runs a program of an image."""
    gang: Role = {
        "name": NODE,
        "count": spec.nodes,
        "restart": GANG,
        "command": _command(spec, python),
        "gpus": spec.resources.gpu * spec.slots,
        "environment": {},
        "table": "resources",
    }
    workers: list[Role] = [
        {
            "name": each.role,
            "count": each.count,
            "restart": EACH,
            "command": [],
            "gpus": each.gpus,
            "environment": _thread_variables(each.cpu),
            "table": each.table,
        }
        for each in spec.workers
    ]
    return [gang, *workers]


def elastic(spec: JobSpec) -> dict[str, Elastic]:
    """The part of the plan of a run whose number of nodes may change; empty for others."""
    if len(spec.sizes) == 1:
        return {}
    return {"elastic": {"sizes": list(spec.sizes), "patience": spec.capacity.patience}}


def limits(spec: JobSpec) -> Limits:
    """The limits that agents apply: a pool without calls is not stuck, and its own limit is that for drivers."""
    own = spec.limits
    return {
        "start": own.start,
        "run": own.run,
        "no_progress": 0.0 if spec.launcher == POOL else own.no_progress,
        "failures": own.failures,
        "interruptions": own.interruptions,
        "cost": min(spec.cost_limits.values(), default=None),
        "silence": own.silence,
        "driver": None if isinstance(own.driver, str) else own.driver,
    }


# What the programs of an image import beside their own module, when they start.
_IMPORTED_LATER = {
    "chainermn": ["mpi4py.MPI", "chainermn.communicators.mpi_communicator_base"],
    "pytorch": ["torch._dynamo"],  # by DistributedDataParallel
}


def preload(spec: JobSpec) -> list[str]:
    """The modules that are imported before ranks start, by default what a training program or a pipeline imports."""
    if spec.preload is not None:
        return list(spec.preload)
    if spec.stream:
        from spotmpi.streams.order import CONSUMER  # few runs have one

        if tuple(spec.command or ())[1:3] == CONSUMER:
            return list(launchers.PIPELINE_MODULES)
    if spec.program is None or spec.image is None:
        return []
    return [names.program_module(spec.image, spec.program), *_IMPORTED_LATER.get(spec.image, [])]


def preload_note(spec: JobSpec, python: str) -> str | None:
    """Why the modules of ``preload`` are not imported before ranks start, where that is so."""
    from spotmpi.agent import fork_server  # few specs name any

    if not spec.preload or fork_server.entry(_command(spec, python)) is not None:
        return None
    return 'preload has no effect: it needs a command such as ["python", "train.py"] or ["python", "-m", "train"]'


def threads(cpus: float) -> int:
    """The threads of a process that has so many CPUs: at least one, and one more for a part of a CPU."""
    return math.ceil(cpus)


def _thread_variables(cpus: float) -> dict[str, str]:
    """The variables that let the usual libraries use so many cores."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads(cpus)))


def rank_variables(spec: JobSpec, run: str, folder: str, memory: str) -> dict[str, str]:
    """The variables of ranks everywhere; *folder* is that of the run, and checkpoints in memory are in *memory*."""
    return {
        "PYTHONUNBUFFERED": "1",
        **_thread_variables(spec.resources.cpu),
        protocol.ENV_RUN: run,
        protocol.ENV_WORLD_SIZE: str(spec.world_size),
        protocol.ENV_CHECKPOINT_PATH: names.checkpoints(folder, spec.checkpoint.path),
        protocol.ENV_CHECKPOINT_EVERY: f"{spec.checkpoint.every:g}",
        protocol.ENV_CHECKPOINT_KEEP: str(spec.checkpoint.keep),
        **({protocol.ENV_MOST_RANKS: str(spec.world_size)} if len(spec.sizes) > 1 else {}),
        **_memory_variables(spec, memory),
        protocol.ENV_TENSORBOARD: f"{folder}/tensorboard",
        **launchers.variables(spec.launcher, spec.resources.gpu),
    }


def _memory_variables(spec: JobSpec, folder: str) -> dict[str, str]:
    """The variables of ranks that write checkpoints to memory, in *folder* of each node."""
    every = spec.checkpoint.memory
    if every is None:
        return {}
    every = every if every.isdigit() else f"{float(str(seconds(every))):g}s"
    return {protocol.ENV_CHECKPOINT_MEMORY: every, protocol.ENV_CHECKPOINT_MEMORY_PATH: folder}


def memory_notes(spec: JobSpec, folder: str, limited: bool = True, copied: bool = False) -> list[str]:
    """How much memory checkpoints take in *folder*, of which limit if it is *limited*, and where they are *copied*."""
    if spec.checkpoint.memory is None:
        return []
    nodes = "node 0 and on node 1" if copied and spec.nodes > 1 else "node 0"
    limit = f", of resources.memory = {spec.resources.memory} per slot" if limited and spec.resources.memory else ""
    return [f"checkpoints in memory take twice the size of a checkpoint on {nodes}, in {folder}{limit}"]


def elastic_notes(spec: JobSpec, what: str) -> list[str]:
    """On how many nodes the run goes on, and *what* becomes of others, where there may be fewer."""
    if len(spec.sizes) == 1:
        return []
    sizes = ", ".join(map(str, spec.sizes[:-1]))
    return [f"each attempt has {sizes} or {spec.nodes} nodes, as many as there are; {what}"]


def standby_notes(spec: JobSpec, rates: Sequence[float] | None, replaces_nodes: bool) -> list[str]:
    """What pods that stand by cost, or why none does; *rates* are US dollars per hour of nodes and workers."""
    if not spec.standby:
        return []
    count = "1 pod stands" if spec.standby == 1 else f"{spec.standby} pods stand"
    if not replaces_nodes:
        return [f"standby = {spec.standby} has no effect: no pod can take the place of a single lost node here"]
    cost = "at an unknown price (`price` in the spec gives one)"
    if rates is not None:
        cost = f"for ${rates[0] * spec.standby / (spec.nodes + spec.standby):.4g} of ${sum(rates):.4g} an hour"
    without = "where there is no room, the run goes on without"
    if spec.kubernetes.queue:
        without = (
            f"queue {spec.kubernetes.queue} admits the run once it has quota for all {spec.nodes + spec.standby} pods"
        )
    return [f"{count} by for lost nodes {cost}; {without}"]


def _command(spec: JobSpec, python: str) -> list[str]:
    if spec.program:
        assert spec.image is not None
        return [python, "-m", names.program_module(spec.image, spec.program), *spec.args]
    return [*(spec.command or []), *spec.args]  # a pool may have none
