"""The factors that a study can vary by name, how their levels change a spec, and which cannot be together. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spotmpi.core.errors import Problem
from spotmpi.spec.job import JobSpec

Level = bool | int | float | str
Levels = Mapping[str, Level]

NODES = "nodes"
PYTORCH = "pytorch"
USUAL = "fp32"  # the type of everything, unless another one is asked for
_SHARED = "shared"
_PLACEMENT: Mapping[Level, str] = {True: "placement group", False: "one zone, no group"}
_SYNTHETIC = "--synthetic"
_SOURCES: Mapping[Level, str] = {"real": "real data", "synthetic": "synthetic data"}
_CACHES: Mapping[Level, str] = {"cold": "cold data", "warm": "warm data"}
_LOCATIONS: Mapping[Level, str] = {
    _SHARED: "data on shared storage",
    "node": "data on node disk",
    "memory": "data in memory",
}
_BATCHES = ("--global-batch", "--batch-per-worker")


@dataclass(frozen=True)
class Factor:
    """A factor of our own programs or of the spec: what its levels may be, and how one changes a spec.

    ``option`` is the program's, None for a key of the spec. ``words`` are what its levels are called, where those are
    all that there can be; those that are counts or sizes are ``above`` a number.
    """

    kinds: tuple[type, ...]
    changed: Callable[[JobSpec, Level], JobSpec]
    option: str | None = None
    shown: str = "{name} {level}"
    words: Mapping[Level, str] = field(default_factory=dict)
    above: int = 0


def _key(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    return lambda spec, level: spec.model_copy(update={name: level})


def _of_nodes(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        value = [level] if name == "node_groups" else level
        return spec.model_copy(update={"kubernetes": spec.kubernetes.model_copy(update={name: value})})

    return change


def _located(spec: JobSpec, level: Level) -> JobSpec:
    """Data read where it is, or copied to each node's disk or memory; a spec without data has none to copy."""
    stage = None if level == _SHARED else level
    return spec.model_copy(update={"data": spec.data and spec.data.model_copy(update={"stage": stage})})


def _source(spec: JobSpec, level: Level) -> JobSpec:
    """Real data, or drawn images: then a spec has no data that would be looked for."""
    kept = [argument for argument in spec.args if argument != _SYNTHETIC]
    return spec if level == "real" else spec.model_copy(update={"args": [*kept, _SYNTHETIC], "data": None})


def _option(name: str, replaces: Sequence[str] = ()) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        return spec.model_copy(update={"args": [*without(spec.args, (name, *replaces)), name, f"{level}"]})

    return change


def _flag(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        kept = [argument for argument in spec.args if argument != name]
        return spec.model_copy(update={"args": [*kept, name] if level else kept})

    return change


def _allreduce(spec: JobSpec, level: Level) -> JobSpec:
    """The type in which gradients travel; each framework has its own option, and fp32 is what they do without it."""
    option = "--ddp-hook" if spec.image == PYTORCH else "--allreduce-dtype"
    return _typed(spec, level, option, ("--ddp-hook", "--allreduce-dtype"))


def _precision(spec: JobSpec, level: Level) -> JobSpec:
    """The type in which a model computes; fp32 is what programs do without a word."""
    return _typed(spec, level, "--precision", ("--precision",))


def _typed(spec: JobSpec, level: Level, option: str, replaces: Sequence[str]) -> JobSpec:
    kept = without(spec.args, replaces)
    return spec.model_copy(update={"args": kept if level == USUAL else [*kept, option, str(level)]})


# In the order in which they change a spec: options depend on the framework.
KNOWN: dict[str, Factor] = {
    "framework": Factor((str,), _key("image"), shown="{level}"),
    "slots": Factor((int,), _key("slots")),
    "node_group": Factor((str,), _of_nodes("node_groups"), shown="group {level}"),
    "instance_type": Factor((str,), _of_nodes("instance_type"), shown="{level}"),
    "placement_group": Factor((bool,), _of_nodes("placement_group"), words=_PLACEMENT),
    "data": Factor((str,), _source, _SYNTHETIC, words=_SOURCES),
    "data_cache": Factor((str,), _option("--data-cache"), "--data-cache", words=_CACHES),
    "data_location": Factor((str,), _located, words=_LOCATIONS),
    "launcher": Factor((str,), _key("launcher"), shown="{level}"),
    "global_batch": Factor((int,), _option("--global-batch", _BATCHES), "--global-batch"),
    "batch_per_worker": Factor((int,), _option("--batch-per-worker", _BATCHES), "--batch-per-worker"),
    "loader_processes": Factor((int,), _option("--loader-processes"), "--loader-processes", above=-1),
    "precision": Factor((str,), _precision, "--precision", "{level} precision"),
    "communicator": Factor((str,), _option("--communicator"), "--communicator", "{level}"),
    "allreduce": Factor((str,), _allreduce, "--allreduce-dtype", "{level} allreduce"),
    "double_buffering": Factor((bool,), _flag("--double-buffering"), "--double-buffering"),
    "bucket_mb": Factor((int, float), _option("--bucket-mb"), "--bucket-mb", "buckets of {level} MB"),
}


def named(name: str, level: Level) -> str:
    """A level in words, short enough for a legend."""
    words = name.replace("_", " ")
    if name in KNOWN and level in KNOWN[name].words:
        return KNOWN[name].words[level]
    if isinstance(level, bool):
        return words if level else f"no {words}"
    shown = KNOWN[name].shown if name in KNOWN else "{level}"
    return shown.format(name=words, level=level)


def without(args: Sequence[str], options: Iterable[str]) -> list[str]:
    """*args* without these options and their values."""
    options, kept, skip = tuple(options), [], False
    for argument in args:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        elif not any(argument.startswith(f"{option}=") for option in options):
            kept.append(argument)
    return kept


def value(args: Sequence[str], option: str) -> str | None:
    """What *args* give for an option, or None."""
    for at, argument in enumerate(args):
        name, equals, rest = argument.partition("=")
        if name == option:
            return rest if equals else next(iter(args[at + 1 : at + 2]), None)
    return None


_CHAINERMN = "chainermn"
_TITLES = {_CHAINERMN: "ChainerMN", PYTORCH: "PyTorch"}
_NCCL = "pure_nccl"
_BURSTABLE = re.compile(r"t\d")  # and not trn1
_TRAIN = ("digits", "ssd", "resnet50")

# Which of our programs have the option of a factor; what is not here is the spec's, and every program's.
UNDERSTOOD: Mapping[str, Sequence[str]] = {
    "global_batch": _TRAIN,
    "batch_per_worker": _TRAIN,
    "loader_processes": _TRAIN,
    "precision": _TRAIN,
    "allreduce": _TRAIN,
    "bucket_mb": _TRAIN,
    "double_buffering": _TRAIN,
    "communicator": (*_TRAIN, "allreduce", "read"),
    "data": ("ssd",),
    "data_cache": ("ssd",),
}
# Of which image's programs alone.
ONLY: Mapping[str, str] = {"communicator": _CHAINERMN, "double_buffering": _CHAINERMN, "bucket_mb": PYTORCH}
# The levels that programs of an image have.
LEVELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "precision": {_CHAINERMN: (USUAL,), PYTORCH: (USUAL, "bf16")},
    "allreduce": {_CHAINERMN: (USUAL, "fp16"), PYTORCH: (USUAL, "fp16", "bf16")},
    "communicator": {_CHAINERMN: (_NCCL, "flat", "non_cuda_aware", "naive")},
}


def problems(levels: Levels, base: JobSpec, spec: JobSpec, nodes: int) -> list[Problem]:
    """What of *levels* cannot be together, where *base* becomes *spec* through them."""
    found: list[Problem] = []
    if "global_batch" in levels and "batch_per_worker" in levels:
        found.append(_clash(levels, "global_batch", "batch_per_worker", "give one of the two"))
    found += _node_conflicts(levels) + _data_conflicts(levels, base)
    foreign = [name for name in levels if name in KNOWN and KNOWN[name].option]
    if spec.program is None and foreign:
        remedy = "only our programs have this option; give a table of levels with settings, such as args+=..."
        found += [Problem(f"factors.{name}", levels[name], remedy) for name in foreign]
    elif spec.program is not None:
        found += _understood(levels, spec)
        found += _exchange(levels, spec)
        found += _rest(spec, nodes)
    return found


def _understood(levels: Levels, spec: JobSpec) -> list[Problem]:
    """What the program has no option for, and levels that its framework does not have."""
    found, image = [], str(spec.image)
    for name, level in levels.items():
        field, known = f"factors.{name}", LEVELS.get(name, {}).get(image)
        if name in UNDERSTOOD and spec.program not in UNDERSTOOD[name]:
            only, have = ", ".join(UNDERSTOOD[name]), "has" if len(UNDERSTOOD[name]) == 1 else "have"
            found.append(Problem(field, level, f"of our programs only {only} {have} it, not {spec.program}"))
        elif name in ONLY and ONLY[name] != image and level:
            found.append(Problem(field, level, f"only {_TITLES[ONLY[name]]} has it"))
        elif known and level not in known:
            found.append(Problem(field, level, f"levels with {_TITLES[image]} are: {', '.join(known)}"))
    return found


def _node_conflicts(levels: Levels) -> list[Problem]:
    found = []
    for name in ("instance_type", "placement_group"):
        if "node_group" in levels and name in levels:
            found.append(_clash(levels, name, "node_group", "the group says it already, give one of the two"))
    if levels.get("placement_group") is True and _BURSTABLE.match(str(levels.get("instance_type", ""))):
        found.append(_clash(levels, "placement_group", "instance_type", "T instances can be in none"))
    return found


def _data_conflicts(levels: Levels, base: JobSpec) -> list[Problem]:
    named = [name for name in ("data", "data_cache", "data_location") if name in levels]
    if base.data is None:
        return [Problem(f"factors.{name}", levels[name], "the spec names no data") for name in named]
    found = []
    for name in named:
        if name != "data" and levels.get("data") == "synthetic":
            found.append(_clash(levels, name, "data", "drawn images lie nowhere: list the combinations"))
    if (levels.get("data_cache"), levels.get("data_location")) == ("cold", "memory"):
        found.append(_clash(levels, "data_cache", "data_location", "what lies in memory is never cold"))
    return found


def _exchange(levels: Levels, spec: JobSpec) -> list[Problem]:
    found = []
    communicator = value(spec.args, "--communicator") or (_NCCL if spec.resources.gpu else "naive")
    for name in ("allreduce", "double_buffering"):
        if spec.image == _CHAINERMN and levels.get(name) not in (None, False, USUAL) and communicator != _NCCL:
            remedy = f"contradicts communicator {communicator}: with ChainerMN only {_NCCL} has it, on GPUs"
            found.append(Problem(f"factors.{name}", levels[name], remedy))
    return found


def _rest(spec: JobSpec, nodes: int) -> list[Problem]:
    batch, ranks = value(spec.args, "--global-batch"), nodes * spec.slots
    if batch is None or not batch.isdigit() or int(batch) % ranks == 0:
        return []
    return [Problem("factors.nodes", nodes, f"a global batch of {batch} cannot be divided by {ranks} ranks")]


def _clash(levels: Levels, one: str, other: str, remedy: str) -> Problem:
    return Problem(f"factors.{one}", levels[one], f"contradicts {other} = {levels[other]!r}; {remedy}")
