"""The built-in factors of a study, how their levels change a spec, and which levels conflict. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spotmpi.core.errors import Problem
from spotmpi.spec.job import JobSpec

Level = bool | int | float | str
Levels = Mapping[str, Level]

NODES = "nodes"
PYTORCH = "pytorch"
DEFAULT_TYPE = "fp32"  # of computation and communication
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
    """A factor of the built-in programs or of the spec: the types of its levels, and how to apply one to a spec.

    ``option`` is that of the programs, None for a key of the spec. ``level_names`` lists all possible levels if there
    is a fixed set of them; numeric levels must be above ``lower_bound``. ``label`` is the format of a level's name.
    ``changes`` are the top-level keys of the spec that a level changes.
    """

    types: tuple[type, ...]
    apply: Callable[[JobSpec, Level], JobSpec]
    option: str | None = None
    label: str = "{name} {level}"
    level_names: Mapping[Level, str] = field(default_factory=dict)
    lower_bound: int = 0
    changes: str = "args"


def _spec_key(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    return lambda spec, level: spec.model_copy(update={name: level})


def _kubernetes_key(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        value = [level] if name == "node_groups" else level
        return spec.model_copy(update={"kubernetes": spec.kubernetes.model_copy(update={name: value})})

    return change


def _stream_workers(spec: JobSpec, level: Level) -> JobSpec:
    """The number of a stream's workers; no effect on a spec without a stream."""
    workers = spec.stream and spec.stream.workers.model_copy(update={"nodes": level})
    return spec.model_copy(update={"stream": spec.stream and spec.stream.model_copy(update={"workers": workers})})


def _stream_prefetch(spec: JobSpec, level: Level) -> JobSpec:
    return spec.model_copy(update={"stream": spec.stream and spec.stream.model_copy(update={"prefetch": level})})


def _data_location(spec: JobSpec, level: Level) -> JobSpec:
    """Data on shared storage, or copied to each node's disk or memory; no effect on a spec without data."""
    stage = None if level == _SHARED else level
    return spec.model_copy(update={"data": spec.data and spec.data.model_copy(update={"stage": stage})})


def _data_source(spec: JobSpec, level: Level) -> JobSpec:
    """Real data, or synthetic images; a spec with those needs no data set."""
    others = [argument for argument in spec.args if argument != _SYNTHETIC]
    return spec if level == "real" else spec.model_copy(update={"args": [*others, _SYNTHETIC], "data": None})


def _option(name: str, replaces: Sequence[str] = ()) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        return spec.model_copy(update={"args": [*without_options(spec.args, (name, *replaces)), name, f"{level}"]})

    return change


def _flag(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    def change(spec: JobSpec, level: Level) -> JobSpec:
        others = [argument for argument in spec.args if argument != name]
        return spec.model_copy(update={"args": [*others, name] if level else others})

    return change


def _allreduce(spec: JobSpec, level: Level) -> JobSpec:
    """The number type of the gradient allreduce; each framework has its own option, without which it is fp32."""
    option = "--ddp-hook" if spec.image == PYTORCH else "--allreduce-dtype"
    return _number_type(spec, level, option, ("--ddp-hook", "--allreduce-dtype"))


def _precision(spec: JobSpec, level: Level) -> JobSpec:
    """The number type of the computation; fp32 without the option."""
    return _number_type(spec, level, "--precision", ("--precision",))


def _number_type(spec: JobSpec, level: Level, option: str, replaces: Sequence[str]) -> JobSpec:
    others = without_options(spec.args, replaces)
    return spec.model_copy(update={"args": others if level == DEFAULT_TYPE else [*others, option, str(level)]})


# In the order in which they are applied: options depend on the framework.
KNOWN: dict[str, Factor] = {
    "framework": Factor((str,), _spec_key("image"), label="{level}", changes="image"),
    "slots": Factor((int,), _spec_key("slots"), changes="slots"),
    "node_group": Factor((str,), _kubernetes_key("node_groups"), label="group {level}", changes="kubernetes"),
    "instance_type": Factor((str,), _kubernetes_key("instance_type"), label="{level}", changes="kubernetes"),
    "placement_group": Factor(
        (bool,), _kubernetes_key("placement_group"), level_names=_PLACEMENT, changes="kubernetes"
    ),
    "data": Factor((str,), _data_source, _SYNTHETIC, level_names=_SOURCES, changes="args data"),
    "data_cache": Factor((str,), _option("--data-cache"), "--data-cache", level_names=_CACHES),
    "data_location": Factor((str,), _data_location, level_names=_LOCATIONS, changes="data"),
    "stream.workers.nodes": Factor((int,), _stream_workers, label="stream workers {level}", changes="stream"),
    "stream.prefetch": Factor((int,), _stream_prefetch, label="prefetch {level}", changes="stream"),
    "launcher": Factor((str,), _spec_key("launcher"), label="{level}", changes="launcher"),
    "global_batch": Factor((int,), _option("--global-batch", _BATCHES), "--global-batch"),
    "batch_per_worker": Factor((int,), _option("--batch-per-worker", _BATCHES), "--batch-per-worker"),
    "loader_processes": Factor((int,), _option("--loader-processes"), "--loader-processes", lower_bound=-1),
    "precision": Factor((str,), _precision, "--precision", "{level} precision"),
    "communicator": Factor((str,), _option("--communicator"), "--communicator", "{level}"),
    "allreduce": Factor((str,), _allreduce, "--allreduce-dtype", "{level} allreduce"),
    "double_buffering": Factor((bool,), _flag("--double-buffering"), "--double-buffering"),
    "bucket_mb": Factor((int, float), _option("--bucket-mb"), "--bucket-mb", "buckets of {level} MB"),
}


def changed_keys(name: str) -> Iterable[str]:
    """The top-level keys of a spec that the built-in factor *name* changes; a misspelt name stands for the closest."""
    if name == NODES:
        return [NODES]
    close = difflib.get_close_matches(name, KNOWN, n=1)
    return KNOWN[close[0]].changes.split() if close else []


def level_remedy(name: str, level: Level) -> str | None:
    """What to do about a level that is impossible for any program, or None."""
    if name == NODES:
        return None if type(level) is int and level >= 1 else "must be an integer of at least 1"
    factor = KNOWN[name]
    if type(level) not in factor.types:
        return f"must be {' or '.join(kind.__name__ for kind in factor.types)}"
    if isinstance(level, int | float) and not isinstance(level, bool) and level <= factor.lower_bound:
        return f"must be above {factor.lower_bound}"
    if factor.level_names and level not in factor.level_names:
        return f"known levels: {', '.join(map(str, factor.level_names))}"
    return None


def level_name(name: str, level: Level) -> str:
    """A level as text, short enough for a legend."""
    words = name.replace("_", " ")
    if name in KNOWN and level in KNOWN[name].level_names:
        return KNOWN[name].level_names[level]
    if isinstance(level, bool):
        return words if level else f"no {words}"
    label = KNOWN[name].label if name in KNOWN else "{level}"
    return label.format(name=words, level=level)


def without_options(args: Sequence[str], options: Iterable[str]) -> list[str]:
    """*args* without these options and their values."""
    options, remaining, skip = tuple(options), [], False
    for argument in args:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        elif not any(argument.startswith(f"{option}=") for option in options):
            remaining.append(argument)
    return remaining


def option_value(args: Sequence[str], option: str) -> str | None:
    """The value of *option* in *args*, or None."""
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

# The built-in programs that have the option of a factor; other factors are keys of the spec and work with any program.
FACTOR_PROGRAMS: Mapping[str, Sequence[str]] = {
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
# Factors of one framework only, by image.
FRAMEWORK_FACTORS: Mapping[str, str] = {
    "communicator": _CHAINERMN,
    "double_buffering": _CHAINERMN,
    "bucket_mb": PYTORCH,
}
# The levels that each framework supports, by image.
FRAMEWORK_LEVELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "precision": {_CHAINERMN: (DEFAULT_TYPE,), PYTORCH: (DEFAULT_TYPE, "bf16")},
    "allreduce": {_CHAINERMN: (DEFAULT_TYPE, "fp16"), PYTORCH: (DEFAULT_TYPE, "fp16", "bf16")},
    "communicator": {_CHAINERMN: (_NCCL, "flat", "non_cuda_aware", "naive")},
}


def level_problems(
    levels: Levels, base: JobSpec, spec: JobSpec, nodes: int, wrong: Collection[str] = ()
) -> list[Problem]:
    """Levels that conflict or do not apply; *spec* is *base* with *levels* applied.

    Checks that depend on one of the *wrong* top-level keys of the spec are left out.
    """
    problems = _conflicts(levels)
    if "data" not in wrong:
        problems += _data_conflicts(levels, base)
    if base.stream is None and "stream" not in wrong:
        streams = [name for name in levels if name in KNOWN and KNOWN[name].changes == "stream"]
        problems += [Problem(f"factors.{name}", levels[name], "the spec has no table [stream]") for name in streams]
    if not {"program", "command", "image"}.isdisjoint(wrong):
        return problems
    options = [name for name in levels if name in KNOWN and KNOWN[name].option]
    if spec.program is None and options:
        remedy = "only the built-in programs have this option; give a table of levels with settings, such as args+=..."
        problems += [Problem(f"factors.{name}", levels[name], remedy) for name in options]
    elif spec.program is not None:
        problems += _program_problems(levels, spec)
        problems += [] if {"args", "resources"} & set(wrong) else _communicator_problems(levels, spec)
        problems += [] if {"args", "slots", NODES} & set(wrong) else _batch_problems(spec, nodes)
    return problems


def _program_problems(levels: Levels, spec: JobSpec) -> list[Problem]:
    """Factors that the program has no option for, and levels that its framework does not support."""
    problems, image = [], str(spec.image)
    for name, level in levels.items():
        field, known = f"factors.{name}", FRAMEWORK_LEVELS.get(name, {}).get(image)
        if name in FACTOR_PROGRAMS and spec.program not in FACTOR_PROGRAMS[name]:
            programs = ", ".join(FACTOR_PROGRAMS[name])
            problems.append(Problem(field, level, f"not supported by program {spec.program}; supported by {programs}"))
        elif name in FRAMEWORK_FACTORS and FRAMEWORK_FACTORS[name] != image and level:
            problems.append(Problem(field, level, f"supported only by {_TITLES[FRAMEWORK_FACTORS[name]]}"))
        elif known and level not in known:
            problems.append(
                Problem(field, level, f"not supported by {_TITLES[image]}; known levels: {', '.join(known)}")
            )
    return problems


def _conflicts(levels: Levels) -> list[Problem]:
    problems = []
    if "global_batch" in levels and "batch_per_worker" in levels:
        problems.append(_conflict(levels, "global_batch", "batch_per_worker", "set only one of them"))
    for name in ("instance_type", "placement_group"):
        if "node_group" in levels and name in levels:
            problems.append(_conflict(levels, name, "node_group", "the node group determines it"))
    if levels.get("placement_group") is True and _BURSTABLE.match(str(levels.get("instance_type", ""))):
        problems.append(
            _conflict(levels, "placement_group", "instance_type", "T instances do not support placement groups")
        )
    return problems


def _data_conflicts(levels: Levels, base: JobSpec) -> list[Problem]:
    named = [name for name in ("data", "data_cache", "data_location") if name in levels]
    if base.data is None:
        return [Problem(f"factors.{name}", levels[name], "the spec has no data") for name in named]
    problems = []
    for name in named:
        if name != "data" and levels.get("data") == "synthetic":
            problems.append(_conflict(levels, name, "data", "synthetic images have no storage; list the combinations"))
    if (levels.get("data_cache"), levels.get("data_location")) == ("cold", "memory"):
        problems.append(_conflict(levels, "data_cache", "data_location", "data in memory is never cold"))
    return problems


def _communicator_problems(levels: Levels, spec: JobSpec) -> list[Problem]:
    problems = []
    communicator = option_value(spec.args, "--communicator") or (_NCCL if spec.resources.gpu else "naive")
    for name in ("allreduce", "double_buffering"):
        if spec.image == _CHAINERMN and levels.get(name) not in (None, False, DEFAULT_TYPE) and communicator != _NCCL:
            remedy = f"not supported by communicator {communicator}; ChainerMN supports it only with {_NCCL}, on GPUs"
            problems.append(Problem(f"factors.{name}", levels[name], remedy))
    return problems


def _batch_problems(spec: JobSpec, nodes: int) -> list[Problem]:
    batch, ranks = option_value(spec.args, "--global-batch"), nodes * spec.slots
    if batch is None or not batch.isdigit() or int(batch) % ranks == 0:
        return []
    return [Problem("factors.nodes", nodes, f"global batch {batch} is not divisible by {ranks} ranks")]


def _conflict(levels: Levels, one: str, other: str, remedy: str) -> Problem:
    return Problem(f"factors.{one}", levels[one], f"conflicts with {other} = {levels[other]!r}: {remedy}")
