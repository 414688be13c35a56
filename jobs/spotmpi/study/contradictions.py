"""Which levels of a study's factors cannot be together, or mean nothing to its program. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from spotmpi.core.errors import Problem
from spotmpi.spec.job import JobSpec
from spotmpi.study.factors import KNOWN, PYTORCH, USUAL, Levels, value

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
    found += _nodes(levels) + _data(levels, base)
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


def _nodes(levels: Levels) -> list[Problem]:
    found = []
    for name in ("instance_type", "placement_group"):
        if "node_group" in levels and name in levels:
            found.append(_clash(levels, name, "node_group", "the group says it already, give one of the two"))
    if levels.get("placement_group") is True and _BURSTABLE.match(str(levels.get("instance_type", ""))):
        found.append(_clash(levels, "placement_group", "instance_type", "T instances can be in none"))
    return found


def _data(levels: Levels, base: JobSpec) -> list[Problem]:
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
