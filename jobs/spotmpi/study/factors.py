"""The factors that a study can vary by name, and how their levels change a spec. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
