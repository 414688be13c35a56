"""Problems of those parts of a spec that only a cluster reads, reported on every target. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spotmpi.agent import pod_context
from spotmpi.core import names, wording
from spotmpi.core.errors import Problem
from spotmpi.spec import roles
from spotmpi.spec.job import Capacity, JobSpec
from spotmpi.spec.node_groups import Choice, capability
from spotmpi.spec.source import is_path
from spotmpi.spec.stream import Stream
from spotmpi.streams.order import CONSUMER, FORMATS, PREDICT

if TYPE_CHECKING:  # a local run starts faster without it
    from spotmpi.core.environment import NodeGroup
    from spotmpi.spec.validate import TargetCapabilities

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
NAME = "names of variables have letters, digits and _ only, and no digit first"
NAMES = f"{NAME}, and do not begin with SPOTMPI_"
_OURS = ("/spotmpi", "/dev/shm", "/etc/passwd", "/etc/group")
# Arguments that set the number and place of ranks: mpirun's spellings of both families, with one dash or two.
_WORLD = {"n": "nodes and slots", "np": "nodes and slots", "c": "nodes and slots", "N": "slots", "npernode": "slots"}
_WORLD |= dict.fromkeys(("H", "host", "hostfile", "machinefile", "default-hostfile", "rankfile"), "nodes")
# Keys of the table `capacity` that need no deadline, and those of simulations alone.
_WITHOUT_DEADLINE = frozenset(
    {"order", "patience", "partial", "retry", "overhead", "prices", "deadline", "market", "zones", "instance_types"}
)
_OF_SIMULATIONS = frozenset({"speeds"})

# Options of sbatch with which a run is not one job that is found by its name, with one agent on each of its nodes.
_NO_OPTIONS = {
    ("array", "a"): "a run is one job; remove it, and start a run for each value, as `spotmpi bench` does",
    ("clusters", "M"): "the job is looked for on this cluster alone; remove it, and name a login node of that one",
    ("job-name", "J"): "the job of a run is found by its name, which is the run's id; remove it",
    ("no-requeue", ""): "a run on Slurm goes on after a lost or preempted node by its requeued job; remove it",
    ("nodes", "N"): "a run has as many nodes as its spec says; remove it, and set `nodes`",
    ("ntasks", "n"): "each node has one agent, which starts its ranks; remove it, and set `nodes` and `slots`",
    ("ntasks-per-node", ""): "each node has one agent, which starts its ranks; remove it, and set `slots`",
    ("test-only", ""): "nothing would be submitted; remove it",
    ("wait", "W"): "the run would be followed only after its end; remove it",
}


def problems(spec: JobSpec, persistent: Sequence[str] | None) -> Iterable[Problem]:
    """All problems; *persistent* are the folders on volumes that outlive a pod, None if all folders do."""
    yield from _labels(spec)
    yield from _mounts(spec)
    yield from _secret_variables(spec)
    yield from _mpi(spec)
    yield from _checkpoint(spec, persistent)


def script(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Why no pod has the script of a command: without code and files that starts in an empty folder there."""
    is_shipped = spec.code or spec.files or spec.kubernetes.templates
    if capabilities.persistent is None or is_shipped or not spec.command:
        return
    interpreter, *words = spec.command
    first = next((word for word in words if word in ("-c", "-m") or not word.startswith("-")), "")
    if re.fullmatch(r"python[\d.]*|bash|sh", interpreter) and re.fullmatch(r"[^/].*\.(py|sh)", first):
        remedy = 'is not in the pods: ship its folder with `code = "."`, or it alone with `files`'
        yield Problem("command", first, remedy)


def sbatch_options(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Options of sbatch that a run cannot have."""
    for (option, letter), remedy in _NO_OPTIONS.items():
        if argument := spec.slurm.argument(option, letter):
            yield Problem("slurm.args", argument, remedy)


def nodes(spec: JobSpec, groups: Sequence[NodeGroup]) -> Iterable[Problem]:
    """Why the run fits no node group of its environment."""
    if not groups:
        requested = {
            **spec.capacity.choices,
            "capacity.deadline": None if spec.capacity.deadline is None else spec.model_dump()["capacity"]["deadline"],
            "kubernetes.node_groups": spec.kubernetes.node_groups or None,
            "kubernetes.placement_group": spec.kubernetes.placement_group,
        }
        remedy = f"needs an environment with node groups: use {wording.option('on', 'STACK')}, or node_selector"
        yield from (Problem(field, value, remedy) for field, value in requested.items() if value is not None)
        return
    choices = roles.choose(spec, groups)
    if isinstance(choices, list):
        yield from choices
    elif spec.image and not spec.kubernetes.image:
        for each in choices:
            yield from _kernels(spec.image, each) if each.spec.resources.gpu else ()


def standby(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Why no pods can stand by for lost nodes of a run."""
    persistent = capabilities.persistent
    if not spec.standby:
        return
    if persistent is None:
        reasons = [f"only pods stand by for lost nodes: leave it out, or use {wording.option('on', 'kubernetes')}"]
    else:
        reasons = [
            reason
            for applies, reason in (
                (spec.pool is not None, "a pool restarts its workers by itself: give more of them as pool.count"),
                (spec.pool is None and spec.nodes == 1, "node 0 is not taken over by another pod: use more nodes"),
                (pod_context.VOLUME not in persistent, "needs a run volume: set kubernetes.volume to a claim"),
            )
            if applies
        ]
    yield from (Problem("standby", spec.standby, reason) for reason in reasons)


def sizes(spec: JobSpec, persistent: Sequence[str]) -> Iterable[Problem]:
    """Why pods cannot be nodes of a run at one time and not at another; *persistent* as for `problems`."""
    reasons = (
        (
            pod_context.VOLUME not in persistent,
            "checkpoints need a run volume: set kubernetes.volume to a claim",
        ),
        (spec.kubernetes.queue, "Kueue admits all pods of a run or none: give one number, or remove kubernetes.queue"),
        (spec.checkpoint.memory, "copies of checkpoints in memory need fixed nodes: give one number, or remove it"),
        (spec.standby, "nodes beyond those of an attempt stand by already: give one number, or remove standby"),
    )
    yield from (Problem("nodes", list(spec.sizes), reason) for applies, reason in reasons if applies)


def capacity(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """What is for a deadline alone, and what keeps the target from meeting one."""
    table = spec.capacity
    given = table.model_dump(exclude_defaults=True)
    for key in sorted(_OF_SIMULATIONS & given.keys()):
        remedy = "only `spotmpi simulate` uses the speeds of numbers of nodes: remove it"
        yield Problem(f"capacity.{key}", given[key], remedy)
    if table.deadline is None:
        for key in sorted(given.keys() - _WITHOUT_DEADLINE - _OF_SIMULATIONS):
            yield Problem(f"capacity.{key}", given[key], "is for a deadline: set capacity.deadline, or remove it")
        if table.prices and not table.order:
            yield Problem("capacity.prices", table.prices, "is for capacity.order or a deadline: set one, or `price`")
    else:
        yield from _deadline(table, capabilities.persistent)
    yield from capabilities.capacity


def _deadline(table: Capacity, persistent: Sequence[str] | None) -> Iterable[Problem]:
    """Why the order of groups cannot be decided by a deadline; *persistent* as for `problems`."""
    if table.order:
        yield Problem("capacity.order", table.order, "capacity.deadline decides the order: remove one of the two")
    if table.work is None:
        remedy = 'needed for capacity.deadline: the time that the work takes without interruption, such as "20h"'
        yield Problem("capacity.work", None, remedy)
    if persistent is not None and pod_context.VOLUME not in persistent:
        remedy = "needed for capacity.deadline, or each move starts from zero: name a claim for the run volume"
        yield Problem("kubernetes.volume", None, remedy)


def driver_python(spec: JobSpec, python: str) -> Iterable[Problem]:
    """Why a driver with this minor version of *python* cannot use a pool in one of spotmpi's images."""
    if spec.pool is None or spec.image is None or spec.kubernetes.image:
        return
    if spec.command or spec.limits.driver == "none":  # the driver is in the pool, or comes later from anywhere
        return
    from spotmpi.images import build
    from spotmpi.images.environment import known_images

    if spec.image in known_images() and python != build.PYTHON:  # an unknown one has its own problem
        cause = (
            f"has Python {build.PYTHON} and this driver has {python}, but pickled functions need the same minor version"
        )
        remedy = f"use spotmpi with Python {build.PYTHON}, a command as the driver, or an image of yours"
        yield Problem("image", spec.image, f"{cause}: {remedy}")


def stream(spec: JobSpec, stream: Stream, persistent: Sequence[str]) -> Iterable[Problem]:
    """Why pods cannot read the source of a stream, or why its results would be lost with them."""
    source, mounts = stream.source, [mount.path for mount in spec.kubernetes.mounts]
    path = source if source and is_path(source) else None
    if path and path.startswith("/") and not within(path, [*persistent, *mounts]):
        remedy = (
            "pods do not have this path: use a URL, a mount (kubernetes.mounts), or a path relative to the run volume"
        )
        yield Problem("stream.source", source, remedy)
    elif path and not path.startswith("/") and pod_context.VOLUME not in persistent:
        remedy = "no such file on this machine, and no run volume: set kubernetes.volume to a claim, or use a URL"
        yield Problem("stream.source", source, remedy)
    if pod_context.VOLUME not in persistent and predicts(spec) and stream.write in (None, *FORMATS):
        remedy = "set kubernetes.volume to a claim, or name a function or a topic"
        yield Problem("stream.write", stream.write, f"results in the run folder are lost with the pods: {remedy}")


def predicts(spec: JobSpec) -> bool:
    """Whether the command of a spec is the prediction of a pipeline."""
    return consumer(spec)[:1] == (PREDICT,)


def consumer(spec: JobSpec) -> tuple[str, ...]:
    """The mode and the function of the pipeline that the command of a spec is; empty if it is none."""
    command, size = tuple(spec.command or ()), len(CONSUMER)
    begins = (at + size for at in range(1, len(command)) if command[at : at + size] == CONSUMER)  # after options
    return next((command[at : at + 2] for at in begins), ())


def _kernels(image: str, choice: Choice) -> Iterable[Problem]:
    from spotmpi.images import build

    builds = [build.build_with_kernels(image, capability(group)) for group in choice.every_group]
    for group, own in zip(choice.every_group, builds, strict=True):
        if own is None:
            kind = "sm_" + str(capability(group)).replace(".", "")
            remedy = f"no build has kernels for the GPUs of {group.name} ({group.type}, {kind}): "
            yield Problem("image", image, remedy + "choose another node group, or an image by kubernetes.image")
    if None not in builds and len(set(builds)) > 1:
        groups = ", ".join(group.name for group in choice.every_group)
        remedy = f"the GPUs of {groups} need different builds of it: name groups that share one"
        yield Problem("image", image, f"{remedy}, or an image by kubernetes.image")


def within(path: str, folders: Iterable[str]) -> bool:
    """Whether an absolute *path* is one of *folders* or inside one."""
    return any(os.path.commonpath([path, folder]) == folder for folder in folders)


def _labels(spec: JobSpec) -> Iterable[Problem]:
    for key, value in spec.kubernetes.labels.items():
        if names.is_reserved(key):
            yield Problem(f"kubernetes.labels.{key}", value, "spotmpi finds its runs by this label: choose another key")


def _mounts(spec: JobSpec) -> Iterable[Problem]:
    seen: set[str] = set()
    for index, mount in enumerate(spec.kubernetes.mounts):
        field, path = f"kubernetes.mounts.{index}.path", mount.path
        if os.path.normpath(f"/{path.lstrip('/')}") != path or path == "/":  # it leaves two slashes at the beginning
            yield Problem(field, path, "write an absolute path below /, without .. and without a slash at its end")
        elif within(path, _OURS) or path == "/dev":
            yield Problem(field, path, f"is used by spotmpi itself, as are {', '.join(_OURS)}; choose another path")
        elif path in seen:
            yield Problem(field, path, "is mounted twice; give one of them another path")
        seen.add(path)


def _secret_variables(spec: JobSpec) -> Iterable[Problem]:
    for name, source in spec.kubernetes.secret_env.items():
        field = f"kubernetes.secret_env.{name}"
        if not re.fullmatch(VARIABLE, name) or name.startswith("SPOTMPI_"):
            yield Problem(field, source, NAMES)
        elif name in spec.env:
            yield Problem(field, source, f"env.{name} sets it too; remove one of them")
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", source):
            yield Problem(field, source, 'write it as SECRET/KEY, such as "wandb/api-key"')


def _mpi(spec: JobSpec) -> Iterable[Problem]:
    for argument in spec.mpi.args:
        instead = _WORLD.get(argument.partition("=")[0].lstrip("-")) if argument.startswith("-") else None
        if instead:
            yield Problem("mpi.args", argument, f"the spec determines number and place of ranks: use {instead}")


def _checkpoint(spec: JobSpec, persistent: Sequence[str] | None) -> Iterable[Problem]:
    path = spec.checkpoint.path
    if path is None or persistent is None:
        return
    if not within(names.checkpoints(f"{pod_context.RUNS}/run", path), persistent):
        remedy = (
            "use a relative path, or one in " + ", ".join(persistent)
            if persistent
            else "set kubernetes.volume to a claim"
        )
        yield Problem("checkpoint.path", path, f"is on no volume that outlives the pods: {remedy}")
