"""Makes the plan of a run on one machine: its roles, environment and limits. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import launch, launchers, protocol
from spotmpi.agent.plan import VERSION, RunPlan
from spotmpi.core import names, wording
from spotmpi.core.wording import counted
from spotmpi.plan.run_plan import (
    elastic,
    elastic_notes,
    limits,
    memory_notes,
    preload,
    preload_note,
    rank_variables,
    roles,
    threads,
)
from spotmpi.spec.job import JobSpec


class Machine(NamedTuple):
    """The facts of this machine that a plan depends on."""

    folder: str  # where commands start
    path: str  # the PATH of the user
    source: str  # the folder with the agent and the training programs
    mpirun: str | None
    mpirun_family: int  # Open MPI's major version
    image_bin: str | None  # the programs of the image's environment
    cores: int
    python_path: str = ""  # the PYTHONPATH of the user
    variables: frozenset[str] = frozenset()  # names of the user's variables, which ranks inherit


def local_plan(spec: JobSpec, paths: names.RunPaths, machine: Machine, work: dict[str, Any]) -> RunPlan:
    """The plan of *spec*; *work* identifies the work (see `spotmpi.runs.fingerprint`)."""
    modules = preload(spec)
    plan: RunPlan = {
        "version": VERSION,
        "run": paths.id,
        "name": spec.title,
        "backend": names.LOCAL,
        "launcher": spec.launcher,
        "run_on": spec.run_on,
        "slots": spec.slots,
        "hosts": ["127.0.0.1"] * spec.nodes,
        "roles": roles(spec, _python(machine)),
        "python": _python(machine),
        "pool_python": _python(machine) if machine.image_bin else None,  # else this one, whose versions drivers have
        "mpi": {"args": [], "path": machine.mpirun, "family": machine.mpirun_family},
        "folder": machine.folder,
        "environment": _environment(spec, paths, machine),
        "limits": limits(spec),
        "rate": spec.price,  # US dollars per hour: all nodes are this machine
        "grace": spec.checkpoint.grace,
        "metrics_pattern": spec.metrics.pattern,
        "oversubscribed": _threads(spec) > machine.cores,
        "spec": spec.canonical(),
        "work": work,
        "notes": _notes(spec, machine),
    }
    more: Any = {**elastic(spec), **({"preload": modules} if modules else {})}
    return {**plan, **more}


def preview(plan: RunPlan, python: str, root: bool) -> dict[str, Any]:
    """The plan with the commands that its agent starts at once; *python* runs the agent, and *root* may be its user."""
    commands = launch.gang_commands(plan, range(launch.launcher_count(plan)), launch.local_location(plan, python, root))
    return {**plan, "commands": [{**each, "member": each["member"].text} for each in commands]}


def _python(machine: Machine) -> str:
    return str(Path(machine.image_bin) / "python") if machine.image_bin else "python3"


def _environment(spec: JobSpec, paths: names.RunPaths, machine: Machine) -> dict[str, str]:
    """The variables of ranks and of workers; those of the spec come last, apart from PYTHONPATH, which has both."""
    python_path = _python_path(spec, paths, machine)
    environment = {
        "PATH": f"{_cached(machine.image_bin)}:{machine.path}" if machine.image_bin else machine.path,
        **launchers.transport_environment(machine.variables | spec.env.keys()),
        **rank_variables(spec, paths.id, str(paths.folder), names.memory_folder(paths.folder)),
        protocol.ENV_HOSTS: "1",
        **python_path,
    }
    if machine.image_bin and "PYTHONHOME" in machine.variables:  # with that of another, its Python finds no module
        environment["PYTHONHOME"] = ""  # as unset
    if spec.stream:
        environment[protocol.ENV_STREAM] = spec.stream.settings.to_json()
        environment[protocol.ENV_STREAM_FOLDER] = str(paths.stream)
    if spec.stream or spec.launcher == "pool":
        environment[protocol.ENV_POOL_TLS] = str(paths.pool)
        environment[protocol.ENV_POOL_CONTROL] = str(paths.pool)
    if spec.data is not None:
        environment[protocol.ENV_DATA] = spec.data.path
    if spec.init is not None:
        environment[protocol.ENV_INIT] = spec.init
    return {**environment, **spec.env, **python_path}


def _python_path(spec: JobSpec, paths: names.RunPaths, machine: Machine) -> dict[str, str]:
    """PYTHONPATH where the program needs folders of spotmpi's: these first, and those of the spec or terminal last."""
    own = spec.env.get("PYTHONPATH", "")
    last = own or machine.python_path
    if spec.stream:
        folders = [_recorded(paths), _start_folder(paths, machine), _cached(machine.source), last]
    elif spec.program:
        folders = [_cached(machine.source), own]
    elif spec.launcher == "pool":
        folders = [_recorded(paths), _cached(machine.source), last]
    else:
        folders = [_start_folder(paths, machine)] if spec.code or spec.files else []
        # The interpreters of images have no spotmpi of their own, for `spotmpi.checkpoint`. Others may.
        ours = [_cached(machine.source)] if spec.image or spec.checkpoint.memory else []
        folders = [*folders, last, *ours] if folders or ours else []
    if not folders:
        return {}
    return {"PYTHONPATH": ":".join(dict.fromkeys(filter(None, folders)))}


def _recorded(paths: names.RunPaths) -> str:
    """The entry for the code in the run folder."""
    remedy = f"use {wording.option('runs', 'FOLDER')} with another one"
    return names.path_entry(str(paths.code), "run folder", remedy)


def _start_folder(paths: names.RunPaths, machine: Machine) -> str:
    if machine.folder == str(paths.code):
        return _recorded(paths)
    return names.path_entry(machine.folder, "code", "rename or copy the folder")


def _cached(folder: str) -> str:
    """The entry for a folder of spotmpi's own, which is in the cache folder or a checkout."""
    return names.path_entry(folder, "spotmpi", "set SPOTMPI_CACHE to another folder, or move the checkout")


def _threads(spec: JobSpec) -> int:
    """The threads that compute at a time: of all ranks and of a stream's workers, or of a pool's."""
    workers = sum(each.count * threads(each.cpu) for each in spec.workers)
    return workers if spec.pool else spec.world_size * threads(spec.resources.cpu) + workers


def _notes(spec: JobSpec, machine: Machine) -> list[str]:
    """What of *spec* has no effect, or costs time, on this machine; for people."""
    notes = []
    count = _threads(spec)
    if count > machine.cores:
        counts = {"rank": 0 if spec.pool else spec.world_size, "worker": sum(each.count for each in spec.workers)}
        processes = " and ".join(counted(number, each) for each, number in counts.items() if number)
        notes.append(
            f"oversubscribed: {counted(count, 'thread')} of {processes} share {counted(machine.cores, 'core')}"
        )
    if spec.files:
        what = "workers start in copies of" if spec.pool and not spec.command else "the command starts in"
        copied = "`code` and `files`" if spec.code else "`files`"
        notes.append(f"{what} {machine.folder}, which contains copies of {copied}")
    if spec.data is not None and spec.data.stage:
        notes.append("data.stage has no effect on this machine: the data is read from its folder")
    notes += elastic_notes(spec, "all nodes are this machine, and only `spotmpi drill` takes some away")
    notes += memory_notes(spec, "/dev/shm", limited=False)
    notes += [f"{each.table}.memory is not enforced on this machine" for each in spec.workers if each.memory]
    if spec.stream:
        notes += [f"{each.table}.image has no effect on this machine" for each in spec.stream.roles if each.image]
    if choices := spec.capacity.choices:
        notes.append(f"no effect on this machine, which has all nodes: {', '.join(choices)}")
    if spec.capacity.deadline is not None:
        notes.append(
            "capacity.deadline: this machine has all nodes, so there is nothing to choose; the work is in time"
        )
    if spec.preload and (note := preload_note(spec, _python(machine))):
        notes.append(note)
    if spec.resources.memory is not None:
        notes.append("resources.memory is not enforced on this machine")
    return notes
