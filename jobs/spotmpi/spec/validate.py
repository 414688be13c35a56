"""All problems of a spec, before anything is started. Pure."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from spotmpi.agent import protocol
from spotmpi.agent.launchers import LAUNCHERS, Launcher, start_count
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import validate_cluster
from spotmpi.spec.job import POOL, JobSpec
from spotmpi.streams.order import FORMATS

if TYPE_CHECKING:  # a local run starts faster without it
    from spotmpi.core.environment import NodeGroup


class TargetCapabilities(NamedTuple):
    """What a target offers to a spec, as its backend found by inspection."""

    programs: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # by image
    data_is_folder: bool = True
    init_is_folder: bool = True
    source_found: bool = True  # whether the source of the stream has files, where it is a path of this machine
    source_has_rows: bool = True  # whether these have rows, as far as it can be told without reading them
    functions: tuple[Problem, ...] = ()  # those of the stream that their modules on this machine do not have
    code_is_folder: bool = True
    unreadable_files: tuple[str, ...] = ()  # of the spec's files
    tools: frozenset[str] = frozenset()  # launchers that can be started
    launcher_image: str | None = None  # an image that has the spec's launcher, where it cannot be started without one
    processes: int | None = None  # that may be started; None without a limit
    command_found: bool = True
    gpus: int = 0
    variables: frozenset[str] = frozenset()  # set in the terminal's environment
    persistent: tuple[str, ...] | None = None  # folders that outlive the run's pods; None if all do
    lacks: str | None = None  # what any run needs of its system and that lacks, with the remedy
    rate: float | None = None  # US dollars per hour of all nodes, None if unknown
    groups: tuple[NodeGroup, ...] = ()  # of the environment
    workers: bool = True  # whether it runs the workers of pools and streams
    several_sizes: bool = True  # whether a run may have another number of nodes at its next attempt
    images: bool = True  # whether it has spotmpi's images
    capacity: tuple[Problem, ...] = ()  # why its deadline cannot be kept there, or a Capacity Block not be used


_NO_CHECKPOINTS = "a pool writes no checkpoints; remove it"
Check = Callable[[JobSpec, TargetCapabilities], Iterable[Problem]]


def validate(spec: JobSpec, capabilities: TargetCapabilities, wrong: Iterable[str] = ()) -> list[Problem]:
    """All problems of *spec* at a target; an empty list means that it can be planned.

    Checks that depend on one of the *wrong* top-level keys, which have defaults in place of their values, are left out.
    """
    if capabilities.lacks:  # what else it lacks does not matter
        return [Problem(wording.option("on"), "local", capabilities.lacks)]
    skipped = set(wrong)
    checks = [check for check, keys in CHECKS if not skipped & set(keys.split())]
    return [*_unrecordable(spec), *(problem for check in checks for problem in check(spec, capabilities))]


def require_valid(spec: JobSpec, capabilities: TargetCapabilities, wrong: Iterable[str] = ()) -> None:
    """Raise InputError with all problems, if there are any; *wrong* as for `validate`."""
    problems = validate(spec, capabilities, wrong)
    if problems:
        raise InputError(problems)


def _unrecordable(spec: JobSpec) -> Iterable[Problem]:
    for key, value in spec.model_dump(exclude_defaults=True).items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            yield Problem(key, value, "has a name that is not UTF-8, which a run cannot record; rename it")


def _work(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """What the run executes: a program of an image or a command, and its arguments."""
    if spec.launcher == POOL:  # a command, its driver, is optional; `_pool` refuses a program
        pass
    elif (spec.program is None) == (spec.command is None):
        remedy = "give either a program or a command, not both" if spec.program else "give a program or a command"
        yield Problem("program", spec.program, remedy)
    if spec.command is not None and not (spec.command and spec.command[0]):
        remedy = 'write the command as a list, such as ["python3", "train.py"]' + wording.either(
            ", or after -- on the command line", ""
        )
        yield Problem("command", spec.command, remedy)
    elif spec.command is not None and not capabilities.command_found:
        yield Problem("command", spec.command[0], _not_found(spec.command[0]))
    for key, arguments in (("command", spec.command or []), ("args", spec.args), ("mpi.args", spec.mpi.args)):
        if any("\0" in each for each in arguments):
            yield Problem(key, arguments, "contains a zero byte, which no argument can hold; remove it")


def _not_found(command: str) -> str:
    if " " in command:
        words = json.dumps(command.split(), ensure_ascii=False)
        return f"command not found; check it, or write its words apart, as {words}"
    if "/" in command:
        return "command not found, or not an executable file (chmod +x); check the path, `code` and `files`"
    other = "`python3` on many systems" if command == "python" else None
    if PurePath(command).suffix:
        other = f"`./{command}` for a file where the command starts"
    name = f"the name ({other})" if other else "the name"
    return f"command not found; check {name}, PATH, `code` and `files`"


def _image(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Whether the target has the image, and the image the program."""
    if spec.image is not None and not capabilities.images:
        remedy = (
            "is not installed over ssh: run spotmpi on the login node, or leave it out and load software by slurm.setup"
        )
        yield Problem("image", spec.image, remedy)
    elif spec.image is not None and spec.image not in capabilities.programs:
        remedy = f"use one of: {', '.join(sorted(capabilities.programs))}"
        if capabilities.persistent is not None:
            reference = f"REGISTRY/{spec.image}:TAG"
            remedy += f"; pods pull any other image by its reference, such as {wording.option('image', reference)}"
        yield Problem("image", spec.image, remedy)
    elif spec.program and spec.image is None:
        yield Problem("image", None, f"a program needs one of the images: {', '.join(sorted(capabilities.programs))}")
    elif spec.program and spec.image and spec.program not in capabilities.programs[spec.image]:
        known = ", ".join(capabilities.programs[spec.image])
        yield Problem("program", spec.program, f"the {spec.image} image has: {known}")


def _launcher(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    launcher = LAUNCHERS.get(spec.launcher)
    if launcher is not None and not launcher.parallel and spec.slots > 1:
        others = ", ".join(name for name, other in LAUNCHERS.items() if other.parallel)
        remedy = f'"{spec.launcher}" starts one process per node: use slots = 1, or another launcher ({others})'
        yield Problem("slots", spec.slots, remedy)
    if spec.run_on == "first" and spec.launcher != "none":
        yield Problem("run_on", spec.run_on, 'needs launcher = "none"')
    if launcher is not None and spec.launcher not in capabilities.tools:  # what a pool needs is checked in `_pool`
        yield Problem("launcher", spec.launcher, _missing(spec, launcher, capabilities))


def _missing(spec: JobSpec, launcher: Launcher, capabilities: TargetCapabilities) -> str:
    if spec.image is None:
        python = f"python3 with the module {launcher.module}" if launcher.module else spec.launcher
        image = capabilities.launcher_image
        remedy = f'install it, or name an image that has it, such as image = "{image}"' if image else "install it"
        alone = ', or start one process per node by launcher = "none"' if launcher.mpi and spec.slots == 1 else ""
        return f"no {launcher.name or python} on PATH: {remedy}{alone}"
    others = ", ".join(name for name in LAUNCHERS if name in capabilities.tools)
    return f"the {spec.image} image has no {spec.launcher}: use one of: {others}"


def _pool(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """What a pool lacks, and what has no meaning for one."""
    if spec.launcher != POOL:
        if spec.pool is not None:
            yield Problem("pool", None, f'needs launcher = "pool", not "{spec.launcher}"')
        return
    if not capabilities.workers:
        yield Problem("launcher", POOL, _no_workers("pools"))
    if spec.pool is None:
        yield Problem("pool", None, "a pool needs workers: add the table [pool] with count = N")
    for key, value in (("nodes", spec.nodes), ("slots", spec.slots)):
        if value != 1:
            yield Problem(key, value, "a pool has one driver: give its number of workers as pool.count")
    if spec.program is not None:
        yield Problem("program", spec.program, "a pool executes functions: leave it out, or give a driver as command")
    if spec.mpi.args:
        yield Problem("mpi.args", spec.mpi.args, "a pool starts no mpirun; remove it")
    for key, set_ in (("path", spec.checkpoint.path), ("memory", spec.checkpoint.memory)):
        if set_ is not None:
            yield Problem(f"checkpoint.{key}", set_, _NO_CHECKPOINTS)
    gpus = spec.pool.gpu * spec.pool.count if spec.pool else 0
    if gpus > capabilities.gpus:
        yield Problem(
            "pool.gpu",
            spec.pool and spec.pool.gpu,
            f"requested {wording.counted(gpus, 'GPU')}, {capabilities.gpus} available",
        )


def _no_workers(what: str) -> str:
    where = wording.option("on", "kubernetes")
    return f"{what} need workers besides the nodes, which runs on Slurm do not have: use {where}"


def _stream(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """What a stream lacks on this target, and what has no meaning for one."""
    streams = spec.program is not None and spec.option("--batches") == "stream"
    if spec.stream is None:
        if streams:
            yield Problem("args", "--batches stream", "needs CPU workers: add the table [stream], or [stream.workers]")
        return
    if not capabilities.workers:
        yield Problem("stream", None, _no_workers("streams"))
    if not capabilities.source_found:
        remedy = "no file of this machine has this name or pattern; check it, or name a data set: datasets:NAME"
        yield Problem("stream.source", spec.stream.source, remedy)
    if not capabilities.source_has_rows:
        remedy = "none of its files has a row, only at most the names of columns; write rows, or name other files"
        yield Problem("stream.source", spec.stream.source, remedy)
    if spec.program is None:
        yield from spec.stream.problems()
        yield from capabilities.functions
        for key, value in (("postprocess", spec.stream.postprocess), ("write", spec.stream.write)):
            if value is not None and not validate_cluster.predicts(spec):
                remedy = "only a prediction has results: start it as spotmpi.pipeline(..., predict=...), or remove it"
                yield Problem(f"stream.{key}", value, remedy)
    else:
        yield from spec.stream.program_problems()
        if not streams:
            remedy = f'add "--batches", "stream" to args, or remove it: {spec.program} loads its data in the ranks'
            yield Problem("stream", None, remedy)
    if spec.launcher == POOL:
        yield Problem("stream", None, "a pool has no ranks that could take batches: use another launcher")
    elif capabilities.persistent is not None:
        yield from validate_cluster.stream(spec, spec.stream, capabilities.persistent)
    elif start_count(spec.launcher, spec.nodes, spec.run_on) > 1:
        remedy = "a stream on this machine needs one launcher process: use slots, or launcher mpirun"
        yield Problem("nodes", spec.nodes, remedy)


def _workers(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Whether as many workers can be started as a pool or stream has."""
    most = capabilities.processes
    for each in spec.workers:
        if most is not None and each.count > most:
            yield Problem(f"{each.table}.count", each.count, f"exceeds the {most} processes possible here")


def _environment(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Names and values of variables, and those of the terminal that are passed on."""
    own = [(f"env.{key}", key, value) for key, value in spec.env.items()]
    own += [(f"nccl.{key}", f"NCCL_{key}", value) for key, value in spec.nccl.items()]
    for field, name, value in own:
        if not re.fullmatch(validate_cluster.VARIABLE, name):
            yield Problem(field, value, validate_cluster.NAME)
        elif name.startswith("SPOTMPI_"):
            yield Problem(field, value, "names that begin with SPOTMPI_ are reserved for the run")
        if "\0" in value:
            yield Problem(field, value, "contains a zero byte, which no variable can hold; remove it")
    for name in spec.env_passthrough:
        if not re.fullmatch(validate_cluster.VARIABLE, name) or name.startswith("SPOTMPI_"):
            yield Problem("env_passthrough", name, validate_cluster.NAMES)
        elif name in spec.env or name in spec.kubernetes.secret_env:
            yield Problem(
                "env_passthrough", name, "also has a value in env or kubernetes.secret_env; remove one of them"
            )
        elif name not in capabilities.variables:
            value = wording.option("env", f"{name}=VALUE")
            yield Problem(
                "env_passthrough", name, f"is not set in this terminal: export it, or give it a value with {value}"
            )


def _code(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Whether the code and the files can be read and shipped."""
    for key, value in (("code", spec.code), ("files", spec.files)):
        if value and spec.program:
            yield Problem(key, value, "is for a command of your own; the programs of an image bring their code")
    if spec.code is not None and not capabilities.code_is_folder:
        yield Problem("code", spec.code, "not a readable folder; check the path")
    seen: dict[str, str] = {}
    for path in spec.files:
        name = PurePath(path).name
        if path in capabilities.unreadable_files:
            yield Problem("files", path, "not a readable file or folder; check the path")
        elif not name:
            yield Problem("files", path, "has no name under which it could be shipped; name what is needed in it")
        elif seen.get(name) == path:
            yield Problem("files", path, "is named twice: name it once")
        elif name in seen:
            yield Problem("files", path, f"another file has the name {name} too; rename one of them")
        seen[name] = path


def _dataset(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if spec.dataset is not None:
        yield from spec.dataset.problems()


def _preload(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    for name in spec.preload or ():
        if not all(part.isidentifier() for part in name.split(".")):
            yield Problem("preload", name, 'is not the name of a module, such as "torch" or "mpi4py.MPI"')
    if spec.preload and spec.launcher == POOL:
        yield Problem("preload", spec.preload, "is for ranks, and a pool has none; remove it")


def _data(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Folders that ranks cannot read. Of an entry behind a URL pods and this machine get copies."""
    data, model = spec.data.path if spec.data else None, "check the path, or name a model: models:NAME"
    pulled = "`spotmpi models pull` copies it to a folder"
    for key, place, is_folder, remedy, remedy_of_url in (
        ("data", data, capabilities.data_is_folder, "check the path", "use it as stream.source"),
        ("init", spec.init, capabilities.init_is_folder, model, pulled),
    ):
        if place is not None and "://" in place and capabilities.persistent is None:
            yield Problem(key, place, f"is behind a URL, which ranks cannot read as a folder: {remedy_of_url}")
        elif place is not None and not is_folder:
            yield Problem(key, place, f"not a readable folder; {remedy}")


def _keep(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if spec.keep is None:
        return
    from spotmpi.entries.manifest import check_name  # few runs are kept

    try:
        check_name(spec.keep)
    except InputError as error:
        yield from (Problem("keep", each.value, each.remedy) for each in error.problems)
    if spec.launcher == POOL:
        yield Problem("keep", spec.keep, _NO_CHECKPOINTS)
    if spec.stream and validate_cluster.predicts(spec) and spec.stream.write not in (None, *FORMATS):
        yield Problem("keep", spec.keep, f'the results are written elsewhere: use stream.write = "{FORMATS[0]}"')


def _resources(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if capabilities.processes is not None and max(spec.nodes, spec.world_size) > capabilities.processes:
        size = f"{wording.counted(spec.nodes, 'node')} x {wording.counted(spec.slots, 'slot')}"
        remedy = f"{size} exceed the {capabilities.processes} processes possible here"
        yield Problem("nodes", spec.nodes, remedy)
    requested = spec.resources.gpu * spec.world_size
    if requested > capabilities.gpus:
        count = wording.counted(requested, "GPU")
        remedy = f"requested {count}, {capabilities.gpus} available; with 0 the program runs on CPUs"
        yield Problem("resources.gpu", spec.resources.gpu, remedy)


def _metrics(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Whether the pattern finds iterations, and what programs report themselves."""
    pattern = spec.metrics.pattern
    if pattern is not None:
        try:
            groups = re.compile(pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            yield Problem("metrics.pattern", pattern, f"is not a regular expression: {error}")
        else:
            if "iteration" not in groups:
                yield Problem("metrics.pattern", pattern, "needs the named group (?P<iteration>...)")
            for name in sorted(protocol.RESERVED_KEYS.intersection(groups)):
                remedy = f"the name {name} is reserved in run records: rename this group"
                yield Problem("metrics.pattern", pattern, remedy)
    elif spec.metrics.samples_per_iteration is not None and spec.program:
        yield Problem(
            "metrics.samples_per_iteration",
            spec.metrics.samples_per_iteration,
            "the programs of an image report it themselves; remove it",
        )


def _cluster(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if capabilities.persistent is not None:
        yield from validate_cluster.nodes(spec, capabilities.groups)
        yield from validate_cluster.driver_python(spec, ".".join(map(str, sys.version_info[:2])))
    yield from validate_cluster.problems(spec, capabilities.persistent)


def _margin(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    margin, grace = spec.checkpoint.margin, spec.checkpoint.grace
    if margin is not None and margin > grace:
        remedy = f"is part of checkpoint.grace, which is {wording.duration(grace)}: at most that"
        yield Problem("checkpoint.margin", wording.duration(margin), remedy)


def _money(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if not spec.cost_limits:
        return
    field, limit = min(spec.cost_limits.items(), key=lambda each: each[1])
    if capabilities.rate is None:
        if field == "limits.cost" or not capabilities.capacity:  # which names what lacks prices
            yield Problem("price", None, f"needed for {field}: set the price of a node, in US dollars per hour")
        return
    paid, grace = limit / capabilities.rate * 3600, spec.checkpoint.grace
    if paid <= grace:
        rate = f"${capabilities.rate:g} an hour"
        remedy = f"pays for {paid:,.1f} s at {rate}, but checkpoint.grace alone is {wording.duration(grace)}: raise it"
        yield Problem(field, limit, remedy)


def _sizes(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    """Why the run cannot go on with another number of nodes, where its spec allows several."""
    if len(spec.sizes) == 1 or spec.launcher == POOL:
        return
    sizes = list(spec.sizes)
    if not capabilities.several_sizes:
        remedy = (
            f"a Slurm job has a fixed number of nodes: give one number, or use {wording.option('on', 'kubernetes')}"
        )
        yield Problem("nodes", sizes, remedy)
    if spec.run_on == "first":
        yield Problem("nodes", sizes, 'the command runs on one node: give one number, or run_on = "all"')
    if spec.stream is not None:
        remedy = "a stream is for a fixed number of nodes: give one number, or remove [stream]"
        yield Problem("nodes", sizes, remedy)
    per_rank = spec.option("--batch-per-worker") if spec.program else None
    if per_rank is not None:
        given = f"--batch-per-worker {per_rank}"
        remedy = "the global batch would change with the number of nodes: give that instead, as `--global-batch`"
        yield Problem("args", given, remedy)
    option = spec.option("--global-batch") if spec.program else None
    batch = int(option) if option and option.isdecimal() else spec.metrics.samples_per_iteration
    fit = [size for size in sizes if not batch or batch % (size * spec.slots) == 0]
    if fit != sizes:
        wrong = " and ".join(str(size) for size in sizes if size not in fit)
        ranks = "" if spec.slots == 1 else f" of {spec.slots} slots"
        wrong += f" {'node' if wrong == '1' else 'nodes'}{ranks}"
        remedy = f"{wrong} cannot share a global batch of {wording.counted(batch or 0, 'sample')} equally: use "
        yield Problem("nodes", sizes, remedy + (f"{fit}, or another batch" if fit else "another batch"))
    if capabilities.persistent is not None:
        yield from validate_cluster.sizes(spec, capabilities.persistent)


# Each check with the keys of a spec that it and the capabilities it looks at depend on.
CHECKS: tuple[tuple[Check, str], ...] = (
    (_work, "program command args image code files env launcher mpi"),
    (_code, "code files program"),
    (validate_cluster.script, "command code files kubernetes"),
    (_image, "image program"),
    (_pool, "launcher pool nodes slots program mpi checkpoint"),
    (_stream, "stream launcher nodes program args kubernetes command"),
    (_workers, "pool stream"),
    (_launcher, "launcher slots run_on image"),
    (_environment, "env env_passthrough kubernetes nccl"),
    (_preload, "preload launcher"),
    (_data, "data init"),
    (_keep, "keep launcher stream command"),
    (_dataset, "dataset"),
    (_resources, "nodes slots resources"),
    (_metrics, "metrics program"),
    (_money, "limits checkpoint price capacity kubernetes nodes standby pool stream"),
    (validate_cluster.sbatch_options, "slurm"),
    (_margin, "checkpoint"),
    (validate_cluster.capacity, "capacity"),
    (_sizes, "nodes slots launcher run_on stream program args metrics capacity kubernetes standby checkpoint"),
    (validate_cluster.standby, "standby nodes capacity kubernetes pool stream"),
    (_cluster, "capacity kubernetes nodes slots resources image env mpi checkpoint pool stream"),
)
