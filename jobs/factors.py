"""The factors that a study can vary by name, and which of their levels contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.errors import Problem
from jobs.spec import JobSpec

Level = bool | int | float | str
Levels = Mapping[str, Level]

NODES = "nodes"
_NCCL = "pure_nccl"
_BATCHES = ("--global-batch", "--batch-per-worker")


@dataclass(frozen=True)
class Factor:
    """A factor of our own programs or of the spec: what its levels may be, and how one changes a spec.

    ``option`` is the program's, None for a key of the spec.
    """

    kinds: tuple[type, ...]
    changed: Callable[[JobSpec, Level], JobSpec]
    option: str | None = None
    shown: str = "{name} {level}"


def _key(name: str) -> Callable[[JobSpec, Level], JobSpec]:
    return lambda spec, level: spec.model_copy(update={name: level})


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
    option = "--ddp-hook" if spec.image == "pytorch" else "--allreduce-dtype"
    kept = without(spec.args, ("--ddp-hook", "--allreduce-dtype"))
    return spec.model_copy(update={"args": kept if level == "fp32" else [*kept, option, str(level)]})


# In the order in which they change a spec: options depend on the framework.
KNOWN: dict[str, Factor] = {
    "framework": Factor((str,), _key("image"), shown="{level}"),
    "slots": Factor((int,), _key("slots")),
    "launcher": Factor((str,), _key("launcher"), shown="{level}"),
    "global_batch": Factor((int,), _option("--global-batch", _BATCHES), "--global-batch"),
    "batch_per_worker": Factor((int,), _option("--batch-per-worker", _BATCHES), "--batch-per-worker"),
    "loader_processes": Factor((int,), _option("--loader-processes"), "--loader-processes"),
    "communicator": Factor((str,), _option("--communicator"), "--communicator", "{level}"),
    "allreduce": Factor((str,), _allreduce, "--allreduce-dtype", "{level} allreduce"),
    "double_buffering": Factor((bool,), _flag("--double-buffering"), "--double-buffering"),
    "bucket_mb": Factor((int, float), _option("--bucket-mb"), "--bucket-mb", "buckets of {level} MB"),
}


def named(name: str, level: Level) -> str:
    """A level in words, short enough for a legend."""
    words = name.replace("_", " ")
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


def contradictions(levels: Levels, base: JobSpec, spec: JobSpec, nodes: int) -> list[Problem]:
    """What of *levels* cannot be together, where *base* becomes *spec* through them."""
    found = []
    if "global_batch" in levels and "batch_per_worker" in levels:
        found.append(_clash(levels, "global_batch", "batch_per_worker", "give one of the two"))
    foreign = [name for name in levels if name in KNOWN and KNOWN[name].option]
    if spec.program is None and foreign:
        remedy = "only our programs have this option; give a table of levels with settings, such as args+=..."
        found += [Problem(f"factors.{name}", levels[name], remedy) for name in foreign]
    elif spec.program is not None:
        found += _exchange(levels, spec)
        found += _rest(spec, nodes)
    return found


def _exchange(levels: Levels, spec: JobSpec) -> list[Problem]:
    found = []
    chainermn_only = [name for name in ("communicator", "double_buffering") if levels.get(name)]
    if spec.image == "pytorch":
        found += [Problem(f"factors.{name}", levels[name], "only ChainerMN has it") for name in chainermn_only]
    elif "bucket_mb" in levels:
        found.append(Problem("factors.bucket_mb", levels["bucket_mb"], "only PyTorch has it"))
    communicator = value(spec.args, "--communicator") or (_NCCL if spec.resources.gpu else "naive")
    for name in ("allreduce", "double_buffering"):
        if spec.image != "pytorch" and levels.get(name) not in (None, False, "fp32") and communicator != _NCCL:
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
