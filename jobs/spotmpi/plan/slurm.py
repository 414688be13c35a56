"""Makes the plan of a run on Slurm: the batch script, and what its agents do. Pure.

The job allocates the nodes once, and its script starts an agent on each for every attempt (`spotmpi.agent.slurm`). All
files are in the run folder, which is on a file system that the nodes share.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TypedDict

from spotmpi.agent import slurm as agent
from spotmpi.agent.boot import ENV_IMAGE_PATH
from spotmpi.agent.plan import VERSION, RunPlan
from spotmpi.agent.pod_context import ENV_RESTART_COUNT
from spotmpi.core import names
from spotmpi.plan.agent_plan import AgentInputs, Layout, agent_plan
from spotmpi.plan.run_plan import memory_notes
from spotmpi.spec.workers import mebibytes, millicores

if TYPE_CHECKING:  # not needed to follow a run
    from spotmpi.spec.job import JobSpec

_BEGINNING = "#SBATCH "
# Slurm may give notice up to a minute early (sbatch(1), --signal), never late; agents look for it once a second.
_NOTICE_MARGIN = 10  # seconds


@dataclass(frozen=True)
class SlurmTarget:
    """Where a run on Slurm has its files, and how its nodes start Python."""

    folder: str  # the run folder, as the nodes see it
    start: str  # where a command starts that comes without code
    python: str  # an interpreter for the agents
    host: str | None = None  # the login node, for ssh; None for this machine
    partition: str | None = None
    image_bin: str | None = None  # the programs of the image's environment
    path: str | None = None  # the PATH of the user


class SlurmPlan(TypedDict):
    """The plan of a run on Slurm, without its key."""

    version: int
    run: str
    name: str
    backend: Literal["slurm"]
    host: str | None
    folder: str  # the run folder, as the nodes see it
    owner: str
    notes: list[str]  # for people
    queue_limit: float | None  # seconds that the job may wait in the queue, where the spec sets limits.start
    script: str
    agents: RunPlan


def slurm_plan(spec: JobSpec, run: str, target: SlurmTarget, inputs: AgentInputs, owner: str) -> SlurmPlan:
    """The plan of *spec*."""
    return {
        "version": VERSION,
        "run": run,
        "name": spec.title,
        "backend": names.SLURM,
        "host": target.host,
        "folder": target.folder,
        "owner": owner,
        "notes": _notes(spec),
        "queue_limit": spec.limits.start if "start" in spec.limits.model_fields_set else None,
        "script": script(spec, run, target),
        "agents": agent_plan(spec, run, inputs, _layout(spec, run, target)),
    }


def own_folder(target: SlurmTarget) -> str:
    """The folder that batch script, agents and terminals share."""
    return f"{target.folder}/{agent.FOLDER}"


def script(spec: JobSpec, run: str, target: SlurmTarget) -> str:
    """The batch script, with sbatch's options: it starts agents until node 0 has written the exit code of the run.

    Where they cannot start, they are started once more when slurmctld answers: srun gives up without it. A job that was
    put back into the queue as its run ended has nothing to do.

    bash has the `module` of a terminal, which is a function; a shell of POSIX does not take it over. A line of
    ``slurm.setup`` that fails ends the job.

    A notice for the batch script alone (``B:``) lets agents write a checkpoint first: a signal to all of the job's
    processes would end the ranks.
    """
    ping, pause = f"{shlex.join(agent.PING)} > /dev/null 2>&1", agent.ASK_INTERVAL
    lines = ["#!/bin/bash", *(f"{_BEGINNING}{_directive(option)}" for option in _options(spec, run, target))]
    lines += _setup(spec, target)
    lines += [
        f'export {ENV_IMAGE_PATH}="$PYTHONPATH" PYTHONPATH="$PWD/{agent.PACKAGE}"',
        f"trap ': > {agent.NOTICE}' USR1",
        "trap 'exit 143' TERM",
        "again=",
        f"while ! [ -e {agent.EXIT_CODE} ]; do",
        f"  rm -f {agent.NOTICE}",
        f"  : > {agent.UNSTARTED}",
        f"  export {ENV_RESTART_COUNT}=$(($(wc -c < {agent.STARTS})))",
        f"  printf . >> {agent.STARTS}",
        f"  {shlex.join(_srun(target))} &",
        "  agents=$!",
        "  while kill -0 $agents 2> /dev/null; do wait $agents; done",
        f"  [ -e {agent.UNSTARTED} ] || {{ again=; continue; }}",
        '  [ "$again" ] && exit 1',
        "  again=1",
        f"  {ping} || {{ until {ping}; do sleep {pause:g}; done; sleep {pause:g}; }}",
        "done",
        f'exit "$(cat {agent.EXIT_CODE})"',
    ]
    return "\n".join([*lines, ""])


def _setup(spec: JobSpec, target: SlurmTarget) -> list[str]:
    """The lines that enter the folder of the script, with those of the user."""
    enter = f"cd {shlex.quote(own_folder(target))} || exit 1"
    if not spec.slurm.setup:
        return [enter]
    failed = "slurm.setup: $BASH_COMMAND ended with exit code $code; its output is in $log"
    on_error = f"""code=$?; echo "{failed}" >&2; exit $code"""
    log = f"log={shlex.quote(f'{own_folder(target)}/{agent.OUTPUT}')}"
    return [enter, log, f"trap '{on_error}' ERR", *spec.slurm.setup, "trap - ERR", enter]


def _srun(target: SlurmTarget) -> list[str]:
    """The command that starts an agent on each node; other steps, such as those of mpirun, may share its resources.

    Agents print what they record as well, for pods, which nobody reads here. They get the script's variables also where
    the job got none of the terminal's (``--export=NONE``), which srun would take over from sbatch. They are bound to no
    processor, as many clusters do by default: ranks would share the one that a task gets.
    """
    options = [
        "--overlap",
        "--cpu-bind=none",
        "--export=ALL",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=30",
        "--output=/dev/null",
    ]
    options += [f"--error={agent.OUTPUT}", "--open-mode=append"]
    return ["srun", *options, target.python, "-S", "-u", "-m", agent.__name__, target.folder]


def _options(spec: JobSpec, run: str, target: SlurmTarget) -> Iterable[str]:
    """The options of sbatch; those of the spec come last, and win."""
    yield f"--job-name={run}"
    yield f"--nodes={spec.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={math.ceil(millicores(spec.resources.cpu, spec.slots) / 1000)}"
    if spec.resources.memory is not None:
        yield f"--mem={math.ceil(mebibytes(spec.resources.memory) * spec.slots)}M"
    if spec.resources.gpu:
        yield f"--gres=gpu:{spec.resources.gpu * spec.slots}"
    if target.partition is not None:
        yield f"--partition={target.partition}"
    if spec.limits.run is not None:
        yield f"--time={math.ceil((spec.limits.run + spec.checkpoint.grace) / 60)}"
    yield f"--signal=B:USR1@{math.ceil(spec.checkpoint.grace) + _NOTICE_MARGIN}"
    yield "--requeue"
    yield "--open-mode=append"
    yield f"--output={own_folder(target).replace('%', '%%')}/{agent.OUTPUT}"
    yield from spec.slurm.args


def _directive(option: str) -> str:
    """An option as a line of a batch script has it: sbatch takes double quotes and a backslash before a quote."""
    if all(char.isalnum() or char in "-_=/.:,@%+" for char in option):
        return option
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'


def options_in(script: str) -> list[str]:
    """The options of sbatch in a batch script, as arguments of its command line: there no variable overrides them."""
    lines = takewhile(lambda line: line.startswith(_BEGINNING), script.splitlines()[1:])
    written = [line[len(_BEGINNING) :] for line in lines]
    return [re.sub(r"\\([\\\"])", r"\1", each[1:-1]) if each.startswith('"') else each for each in written]


def _layout(spec: JobSpec, run: str, target: SlurmTarget) -> Layout:
    """Where things are on the nodes of a job: in folders of their own, and in the run folder that they share."""
    work = agent.work_folder(run)
    path = ":".join(filter(None, [target.image_bin, spec.env.get("PATH") or target.path]))
    return Layout(
        hosts=[""] * spec.nodes,  # which Slurm chooses
        folder=target.folder,
        volume=target.start,
        work=work,
        memory=agent.memory_folder(run),
        package=f"{own_folder(target)}/{agent.PACKAGE}",
        code=f"{work}/user",
        start=target.start,
        secret=own_folder(target),
        environment={"PATH": path} if path else {},
        forks=False,  # they would belong to the step of the agent, without the GPUs and cores of mpirun's
    )


def _notes(spec: JobSpec) -> list[str]:
    notes = []
    if choices := spec.capacity.choices:
        notes.append(f"no effect on Slurm, where the partition has the nodes: {', '.join(choices)}")
    if spec.capacity.deadline is not None:
        notes.append(
            "capacity.deadline has no effect on Slurm, where the partition has the nodes and its queue the time"
        )
    if spec.limits.run is not None and spec.slurm.argument("time", "t") is None:
        notes.append("limits.run is the time limit of the Slurm job as well")
    if spec.preload:
        notes.append("preload has no effect on Slurm: each rank imports its modules itself")
    return [*notes, *memory_notes(spec, "/dev/shm", copied=True)]
