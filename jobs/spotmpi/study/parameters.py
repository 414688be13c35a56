"""Variants and the built-in parameters of a study: how they change a spec, and which values conflict. Pure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error, written
from spotmpi.core.wording import counted
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Convert, from_values, setting_with_places

Value = bool | int | float | str
Values = Mapping[str, Value]

NODES = "nodes"
PYTORCH = "pytorch"
DEFAULT_TYPE = "fp32"  # of computation and communication
_SHARED = "shared"
_PLACEMENT: Mapping[Value, str] = {True: "placement group", False: "one zone, no group"}
_SYNTHETIC = "--synthetic"
_SOURCES: Mapping[Value, str] = {"real": "real data", "synthetic": "synthetic data"}
_CACHES: Mapping[Value, str] = {"cold": "cold data", "warm": "warm data"}
_LOCATIONS: Mapping[Value, str] = {
    _SHARED: "data on shared storage",
    "node": "data on node disk",
    "memory": "data in memory",
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BATCHES = ("--global-batch", "--batch-per-worker")
BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_FIELD = "variant"
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|.', re.DOTALL)  # a text in quotes, or a letter
_SHAPE = 'write it as name:key=value,..., such as "wide:slots=2" or "fp16:args+=--allreduce-dtype fp16"'
_SELECTS = tuple(f"kubernetes.{key}" for key in ("node_selector", "node_groups", "instance_type", "placement_group"))
_NOT_MEASURED = ("name", "limits")  # what may differ without changing what is measured


@dataclass(frozen=True)
class Parameter:
    """A parameter of the built-in programs or of the spec: the types of its values, and how to apply one to a spec.

    ``option`` is that of the programs, None for a key of the spec. ``value_names`` lists all possible values if there
    is a fixed set of them; numeric values must be above ``lower_bound``. ``label`` is the format of a value's name.
    ``changes`` are the top-level keys of the spec that a value changes.
    """

    types: tuple[type, ...]
    apply: Callable[[JobSpec, Value], JobSpec]
    option: str | None = None
    label: str = "{name} {value}"
    value_names: Mapping[Value, str] = field(default_factory=dict)
    lower_bound: int = 0
    changes: str = "args"


def _of_spec(
    path: str,
    kind: type,
    label: str = "{name} {value}",
    value_names: Mapping[Value, str] = MappingProxyType({}),
    setting: Callable[[Value], object] = lambda value: value,
) -> Parameter:
    """A key of the spec at a dotted *path*, which gets the *setting* of a value; no effect without its table."""

    def changed(table: Any, key: str, value: object) -> Any:
        first, dot, rest = key.partition(".")
        return table and table.model_copy(update={first: changed(getattr(table, first), rest, value) if dot else value})

    def apply(spec: JobSpec, value: Value) -> JobSpec:
        return changed(spec, path, setting(value)) or spec

    return Parameter((kind,), apply, label=label, value_names=value_names, changes=path.partition(".")[0])


def _data_source(spec: JobSpec, value: Value) -> JobSpec:
    """Real data, or synthetic images; a spec with those needs no data set."""
    others = [argument for argument in spec.args if argument != _SYNTHETIC]
    return spec if value == "real" else spec.model_copy(update={"args": [*others, _SYNTHETIC], "data": None})


def _option(name: str, replaces: Sequence[str] = ()) -> Callable[[JobSpec, Value], JobSpec]:
    def change(spec: JobSpec, value: Value) -> JobSpec:
        return spec.model_copy(update={"args": [*without_options(spec.args, (name, *replaces)), name, f"{value}"]})

    return change


def _double_buffering(spec: JobSpec, value: Value) -> JobSpec:
    option = "--double-buffering"
    others = [argument for argument in spec.args if argument != option]
    return spec.model_copy(update={"args": [*others, option] if value else others})


def _allreduce(spec: JobSpec, value: Value) -> JobSpec:
    """The number type of the gradient allreduce; each framework has its own option, without which it is fp32."""
    option = "--ddp-hook" if spec.image == PYTORCH else "--allreduce-dtype"
    return _number_type(spec, value, option, ("--ddp-hook", "--allreduce-dtype"))


def _precision(spec: JobSpec, value: Value) -> JobSpec:
    """The number type of the computation; fp32 without the option."""
    return _number_type(spec, value, "--precision", ("--precision",))


def _number_type(spec: JobSpec, value: Value, option: str, replaces: Sequence[str]) -> JobSpec:
    others = without_options(spec.args, replaces)
    return spec.model_copy(update={"args": others if value == DEFAULT_TYPE else [*others, option, str(value)]})


# In the order in which they are applied: options depend on the framework.
KNOWN: dict[str, Parameter] = {
    "framework": _of_spec("image", str, "{value}"),
    "slots": _of_spec("slots", int),
    "node_group": _of_spec("kubernetes.node_groups", str, "group {value}", setting=lambda value: [value]),
    "instance_type": _of_spec("kubernetes.instance_type", str, "{value}"),
    "placement_group": _of_spec("kubernetes.placement_group", bool, value_names=_PLACEMENT),
    "data": Parameter((str,), _data_source, _SYNTHETIC, value_names=_SOURCES, changes="args data"),
    "data_cache": Parameter((str,), _option("--data-cache"), "--data-cache", value_names=_CACHES),
    "data_location": _of_spec(
        "data.stage", str, value_names=_LOCATIONS, setting=lambda value: None if value == _SHARED else value
    ),
    "stream.workers.count": _of_spec("stream.workers.count", int, "stream workers {value}"),
    "stream.prefetch": _of_spec("stream.prefetch", int, "prefetch {value}"),
    "launcher": _of_spec("launcher", str, "{value}"),
    "global_batch": Parameter((int,), _option("--global-batch", _BATCHES), "--global-batch"),
    "batch_per_worker": Parameter((int,), _option("--batch-per-worker", _BATCHES), "--batch-per-worker"),
    "loader_processes": Parameter((int,), _option("--loader-processes"), "--loader-processes", lower_bound=-1),
    "precision": Parameter((str,), _precision, "--precision", "{value} precision"),
    "communicator": Parameter((str,), _option("--communicator"), "--communicator", "{value}"),
    "allreduce": Parameter((str,), _allreduce, "--allreduce-dtype", "{value} allreduce"),
    "double_buffering": Parameter((bool,), _double_buffering, "--double-buffering"),
    "bucket_mb": Parameter((int, float), _option("--bucket-mb"), "--bucket-mb", "buckets of {value} MB"),
}


BUILT_IN = (NODES, *KNOWN)


def changed_keys(name: str) -> Iterable[str]:
    """The top-level keys of a spec that the built-in parameter *name* changes; the closest if it is misspelt."""
    if name == NODES:
        return [NODES]
    close = difflib.get_close_matches(name, KNOWN, n=1)
    return KNOWN[close[0]].changes.split() if close else []


def value_remedy(name: str, value: Value) -> str | None:
    """What to do about a value that is impossible for any program, or None."""
    if name == NODES:
        return None if type(value) is int and value >= 1 else "must be a whole number of at least 1"
    parameter = KNOWN[name]
    if type(value) not in parameter.types:
        return f"must be {_KINDS[parameter.types[-1]]}"
    if isinstance(value, int | float) and not isinstance(value, bool) and not parameter.lower_bound < value < math.inf:
        return f"must be above {parameter.lower_bound}"
    if parameter.value_names and value not in parameter.value_names:
        return f"known values: {', '.join(map(str, parameter.value_names))}"
    return None


def value_name(name: str, value: Value) -> str:
    """A value as text, short enough for a legend."""
    words = name.replace("_", " ")
    if name in KNOWN and value in KNOWN[name].value_names:
        return KNOWN[name].value_names[value]
    if isinstance(value, bool):
        return words if value else f"no {words}"
    label = KNOWN[name].label if name in KNOWN else "{value}"
    return label.format(name=words, value=value)


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


_CHAINERMN = "chainermn"
_TITLES = {_CHAINERMN: "ChainerMN", PYTORCH: "PyTorch"}
_NCCL = "pure_nccl"
_BURSTABLE = re.compile(r"t\d")  # and not trn1
_TRAIN = ("digits", "ssd", "resnet50")

# The built-in programs that have the option of a parameter; other parameters are keys of the spec and fit any program.
PARAMETER_PROGRAMS: Mapping[str, Sequence[str]] = {
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
# Parameters of one framework only, by image.
FRAMEWORK_PARAMETERS: Mapping[str, str] = {
    "communicator": _CHAINERMN,
    "double_buffering": _CHAINERMN,
    "bucket_mb": PYTORCH,
}
# The values that each framework supports, by image.
FRAMEWORK_VALUES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "precision": {_CHAINERMN: (DEFAULT_TYPE,), PYTORCH: (DEFAULT_TYPE, "bf16")},
    "allreduce": {_CHAINERMN: (DEFAULT_TYPE, "fp16"), PYTORCH: (DEFAULT_TYPE, "fp16", "bf16")},
    "communicator": {_CHAINERMN: (_NCCL, "flat", "non_cuda_aware", "naive")},
}


def value_problems(values: Values, base: JobSpec, spec: JobSpec, nodes: int, wrong: Collection[str]) -> list[Problem]:
    """Values that conflict or do not apply; *spec* is *base* with *values* applied.

    Checks that depend on one of the *wrong* top-level keys of the spec are left out.
    """
    problems = _conflicts(values)
    if "data" not in wrong:
        problems += _data_conflicts(values, base)
    if base.stream is None and "stream" not in wrong:
        streams = [name for name in values if name in KNOWN and KNOWN[name].changes == "stream"]
        problems += [Problem(f"parameters.{name}", values[name], "the spec has no table [stream]") for name in streams]
    if not {"program", "command", "image"}.isdisjoint(wrong):
        return problems
    options = [name for name in values if name in KNOWN and KNOWN[name].option]
    if spec.program is None and options:
        remedy = "only the built-in programs have this option; give a table of values with settings, such as args+=..."
        problems += [Problem(f"parameters.{name}", values[name], remedy) for name in options]
    elif spec.program is not None:
        problems += _program_problems(values, spec)
        problems += [] if {"args", "resources"} & set(wrong) else _communicator_problems(values, spec)
        problems += [] if {"args", "slots", NODES} & set(wrong) else _batch_problems(spec, nodes)
    return problems


def _program_problems(values: Values, spec: JobSpec) -> list[Problem]:
    """Parameters that the program has no option for, and values that its framework does not support."""
    problems, image = [], str(spec.image)
    for name, value in values.items():
        field, known = f"parameters.{name}", FRAMEWORK_VALUES.get(name, {}).get(image)
        if name in PARAMETER_PROGRAMS and spec.program not in PARAMETER_PROGRAMS[name]:
            programs = ", ".join(PARAMETER_PROGRAMS[name])
            problems.append(Problem(field, value, f"not supported by program {spec.program}; supported by {programs}"))
        elif name in FRAMEWORK_PARAMETERS and FRAMEWORK_PARAMETERS[name] != image and value:
            problems.append(Problem(field, value, f"supported only by {_TITLES[FRAMEWORK_PARAMETERS[name]]}"))
        elif known and value not in known:
            problems.append(
                Problem(field, value, f"not supported by {_TITLES[image]}; known values: {', '.join(known)}")
            )
    return problems


def _conflicts(values: Values) -> list[Problem]:
    problems = []
    if "global_batch" in values and "batch_per_worker" in values:
        problems.append(_conflict(values, "global_batch", "batch_per_worker", "set only one of them"))
    for name in ("instance_type", "placement_group"):
        if "node_group" in values and name in values:
            problems.append(_conflict(values, name, "node_group", "the node group determines it"))
    if values.get("placement_group") is True and _BURSTABLE.match(str(values.get("instance_type", ""))):
        problems.append(
            _conflict(values, "placement_group", "instance_type", "T instances do not support placement groups")
        )
    return problems


def _data_conflicts(values: Values, base: JobSpec) -> list[Problem]:
    named = [name for name in ("data", "data_cache", "data_location") if name in values]
    if base.data is None:
        return [Problem(f"parameters.{name}", values[name], "the spec has no data") for name in named]
    problems = []
    for name in named:
        if name != "data" and values.get("data") == "synthetic":
            problems.append(_conflict(values, name, "data", "synthetic images have no storage; use [[configurations]]"))
    if (values.get("data_cache"), values.get("data_location")) == ("cold", "memory"):
        problems.append(_conflict(values, "data_cache", "data_location", "data in memory is never cold"))
    return problems


def _communicator_problems(values: Values, spec: JobSpec) -> list[Problem]:
    problems = []
    communicator = spec.option("--communicator") or (_NCCL if spec.resources.gpu else "naive")
    for name in ("allreduce", "double_buffering"):
        if spec.image == _CHAINERMN and values.get(name) not in (None, False, DEFAULT_TYPE) and communicator != _NCCL:
            remedy = f"not supported by communicator {communicator}; ChainerMN supports it only with {_NCCL}, on GPUs"
            problems.append(Problem(f"parameters.{name}", values[name], remedy))
    return problems


def _batch_problems(spec: JobSpec, nodes: int) -> list[Problem]:
    batch, ranks = spec.option("--global-batch"), nodes * spec.slots
    if batch is None or not re.fullmatch("[0-9]+", batch) or int(batch) % ranks == 0:
        return []
    return [Problem("parameters.nodes", nodes, f"global batch {batch} is not divisible by {counted(ranks, 'rank')}")]


def _conflict(values: Values, one: str, other: str, remedy: str) -> Problem:
    return Problem(f"parameters.{one}", values[one], f"conflicts with {other} = {written(values[other])}: {remedy}")


@dataclass(frozen=True)
class Variant:
    """A spec under a name; ``settings`` are the overrides that make it from the base, ``keys`` what they change.

    ``values`` are the parameters of a study that it combines, each with its value as text.
    """

    name: str
    settings: tuple[str, ...]
    spec: JobSpec
    values: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """What the variant changes: the spec's top-level keys, and ``machine`` if it selects nodes."""
        changed = {re.split(r"[.+=]", setting.strip())[0] for setting in self.settings}
        selects = any(setting.strip().startswith(_SELECTS) for setting in self.settings)
        return tuple(sorted({*changed, "machine"} if selects else changed))

    @property
    def text(self) -> str:
        """The variant as ``--variant`` takes it."""
        return f"{self.name}:{','.join(self.settings)}"


def read_variants(
    texts: Iterable[str], base: JobSpec, wrong: Collection[str] = ()
) -> tuple[tuple[Variant, ...], list[Problem]]:
    """The base and the variants that *texts* describe, and the problems of the others.

    Those are an unreadable text, an unknown key, a name used twice, and nothing changed, unless *base* is without a
    value for one of the *wrong* keys that the variant changes.
    """
    variants = [Variant(BASE, (), base)]
    problems: list[Problem] = []
    for text in texts:
        try:
            variant = _read_variant(text, base)
        except InputError as error:
            problems += error.problems
            continue
        problem = _clash(variant, text, variants, wrong)
        if problem:
            problems.append(problem)
        else:
            variants.append(variant)
    return tuple(variants), problems


def _read_variant(text: str, base: JobSpec) -> Variant:
    """The variant of *base* that *text* describes; InputError where it describes none."""
    name, colon, rest = text.partition(":")
    settings = tuple(_split(rest))
    if not colon or not settings:
        raise input_error(wording.option(_FIELD), text, _SHAPE)
    if not _NAME.fullmatch(name):
        raise input_error(
            wording.option(_FIELD),
            text,
            f"its name {name!r} may hold letters, digits and . _ + - only, at most 40 of them",
        )
    spec = base
    for setting in settings:
        spec = vary(spec, setting, text)
    return Variant(name, settings, spec)


def vary(spec: JobSpec, setting: str, text: str) -> JobSpec:
    """*spec* with one override applied; InputError names *text* where that is not possible."""
    key, equals, _ = (part.strip() for part in setting.partition("="))
    if key == "nodes":
        raise input_error(wording.option(_FIELD), text, f"node counts are varied with {wording.option('nodes')}")
    if not equals or not key.strip("+"):
        raise input_error(wording.option(_FIELD), text, f"{setting!r} sets nothing: {_SHAPE}")
    try:
        return from_values(spec.canonical(), [setting])
    except InputError as error:
        raise InputError(
            [Problem(f"{wording.option(_FIELD)} {text}", None, str(problem)) for problem in error.problems]
        ) from None


def settings_with_places(field: str, texts: Iterable[str], convert: Convert) -> tuple[list[str], list[Problem]]:
    """Variants or settings with the places of the entries that they name, and the problems, of *field*, of the others.

    *convert* gives the place of what is read as a folder, where that is another one. A study records places, since a
    name stands for another entry later.
    """
    found: list[str] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            found.append(setting_with_places(text, convert))
        except InputError as error:
            problems += [Problem(field, text, str(problem)) for problem in error.problems]
    return found, problems


def _clash(variant: Variant, text: str, others: Sequence[Variant], wrong: Collection[str]) -> Problem | None:
    for other in others:
        if variant.name == other.name:
            why = "the spec itself has this name" if other.name == BASE else "two variants have this name"
            return Problem(wording.option(_FIELD), text, f"{why}; choose another")
        if _measured(variant.spec) == _measured(other.spec) and not set(wrong).intersection(variant.keys):
            same = "changes nothing that is measured" if other.name == BASE else f"is the same as {other.name}"
            return Problem(wording.option(_FIELD), text, f"{same}; leave it out or change another key")
    return None


def _measured(spec: JobSpec) -> dict[str, object]:
    return {key: value for key, value in spec.canonical().items() if key not in _NOT_MEASURED}


def _split(text: str) -> list[str]:
    """*text* cut at the commas outside of quotes and brackets."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{") - (token in "]}")
        if token == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts if part.strip()]
