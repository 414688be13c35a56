"""Everything wrong with a spec, at once and before anything is started. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spotmpi.agent import protocol
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import validate_cluster
from spotmpi.spec.job import JobSpec


@dataclass(frozen=True)
class TargetCapabilities:
    """What a backend found out about the place where a spec is to run."""

    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each image
    data_is_folder: bool = True
    code_is_folder: bool = True
    tools: frozenset[str] = frozenset()  # launchers that can be started there
    processes: int | None = None  # that may be started, where that is limited
    command_found: bool = True
    gpus: int = 0
    variables: frozenset[str] = frozenset()  # that are set where the command was given
    lasting: tuple[str, ...] | None = None  # folders that outlive the run's pods; None where everything does
    rate: float | None = None  # US dollars per hour of all nodes, where known
    groups: tuple[NodeGroup, ...] = ()  # of the environment


Check = Callable[[JobSpec, TargetCapabilities], Iterable[Problem]]


def validate(spec: JobSpec, there: TargetCapabilities) -> list[Problem]:
    """All problems of *spec* at a place; an empty list means that it can be planned."""
    return [problem for check in _CHECKS for problem in check(spec, there)]


def require_valid(spec: JobSpec, there: TargetCapabilities) -> None:
    """Raise InputError with all problems, if there are any."""
    problems = validate(spec, there)
    if problems:
        raise InputError(problems)


def _work(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if (spec.program is None) == (spec.command is None):
        found = "both" if spec.program else "neither"
        yield Problem("program", spec.program, f"give exactly one of program and command, not {found}")
    if spec.command is not None and not (spec.command and spec.command[0]):
        yield Problem("command", spec.command, 'write the command as a list, such as ["python", "train.py"]')
    elif spec.command is not None and not there.command_found:
        yield Problem("command", spec.command[0], "is no command that can be started here; check its name and PATH")
    if any("\0" in part for part in [*(spec.command or []), *spec.args]):
        yield Problem("args", spec.args, "remove the zero byte; no program can be given one")


def _image(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if spec.image is not None and spec.image not in there.programs:
        yield Problem("image", spec.image, f"use one of: {', '.join(sorted(there.programs))}")
    elif spec.program and spec.image is None:
        yield Problem("image", None, f"a program needs one of the images: {', '.join(sorted(there.programs))}")
    elif spec.program and spec.image and spec.program not in there.programs[spec.image]:
        known = ", ".join(there.programs[spec.image])
        yield Problem("program", spec.program, f"the {spec.image} image has: {known}")


def _launcher(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if spec.launcher == "none" and spec.slots > 1:
        yield Problem("slots", spec.slots, 'launcher "none" starts one process per node: use slots = 1')
    if spec.where == "first" and spec.launcher != "none":
        yield Problem("where", spec.where, 'only launcher "none" runs on the first node alone')
    if spec.launcher == "torchrun" and spec.image == "chainermn":
        yield Problem("launcher", spec.launcher, 'the chainermn image has no torchrun: use "mpirun"')
    elif spec.launcher not in there.tools:
        yield Problem("launcher", spec.launcher, _missing(spec))


def _missing(spec: JobSpec) -> str:
    if spec.image is None:
        return f'no {spec.launcher} on PATH: install it, or name an image that brings it, such as image = "pytorch"'
    return f"the {spec.image} image brings no {spec.launcher}"


def _environment(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    for key, value in spec.env.items():
        if not re.fullmatch(validate_cluster.VARIABLE, key):
            yield Problem(f"env.{key}", value, "a variable's name has letters, digits and _ only")
        elif key.startswith("SPOTMPI_"):
            yield Problem(f"env.{key}", value, "names with SPOTMPI_ are set by the run itself")
        if "\0" in value:
            yield Problem(f"env.{key}", value, "remove the zero byte; no variable can hold one")
    for name in spec.forward:
        if not re.fullmatch(validate_cluster.VARIABLE, name) or name.startswith("SPOTMPI_"):
            yield Problem("forward", name, "a variable's name has letters, digits and _ only, and no SPOTMPI_ in front")
        elif name in spec.env or name in spec.kubernetes.secret_env:
            yield Problem(
                "forward", name, "is given a value by env or kubernetes.secret_env too; take one of them away"
            )
        elif name not in there.variables:
            yield Problem(
                "forward", name, f"is not set here: export it first, or give it a value by --env {name}=VALUE"
            )


def _code(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if spec.code is None:
        return
    if spec.program:
        yield Problem("code", spec.code, "goes with a command of yours; our programs bring their own code")
    if not there.code_is_folder:
        yield Problem("code", spec.code, "is not a folder that can be read; check the path")


def _data(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if spec.data is not None and not there.data_is_folder:
        yield Problem("data", spec.data.path, "is not a folder that can be read; check the path")


def _resources(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if there.processes is not None and max(spec.nodes, spec.world_size) > there.processes:
        remedy = f"{spec.nodes} nodes x {spec.slots} slots are more than the {there.processes} processes possible here"
        yield Problem("nodes", spec.nodes, remedy)
    wanted = spec.resources.gpu * spec.world_size
    if wanted > there.gpus:
        yield Problem("resources.gpu", spec.resources.gpu, f"{wanted} GPUs are asked for, {there.gpus} are here")


def _metrics(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    pattern = spec.metrics.pattern
    if pattern is not None:
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            yield Problem("metrics.pattern", pattern, f"is not a regular expression: {error}")
        else:
            if "iteration" not in groups:
                yield Problem("metrics.pattern", pattern, "needs the named group (?P<iteration>...)")
            for name in sorted(protocol.RESERVED_KEYS.intersection(groups)):
                remedy = f"the name {name} has a meaning of its own in a run's record: call this group otherwise"
                yield Problem("metrics.pattern", pattern, remedy)
    elif spec.metrics.samples_per_iteration is not None and spec.program:
        yield Problem(
            "metrics.samples_per_iteration",
            spec.metrics.samples_per_iteration,
            "our programs report it themselves; leave it out",
        )


def _cluster(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    if there.lasting is not None:
        yield from validate_cluster.nodes(spec, there.groups)
    yield from validate_cluster.problems(spec, there.lasting)


def _money(spec: JobSpec, there: TargetCapabilities) -> Iterable[Problem]:
    limit = spec.limits.cost
    if limit is None:
        return
    if there.rate is None:
        yield Problem("price", None, "limits.cost needs it: set what a node costs, in US dollars per hour")
        return
    paid, grace = limit / there.rate * 3600, spec.checkpoint.grace
    if paid <= grace:
        remedy = f"pays for {paid:.3g}s at ${there.rate:g} an hour, and checkpoint.grace alone is {grace:g}s: raise it"
        yield Problem("limits.cost", limit, remedy)


_CHECKS: tuple[Check, ...] = (
    _work,
    _code,
    _image,
    _launcher,
    _environment,
    _data,
    _resources,
    _metrics,
    _money,
    _cluster,
)
