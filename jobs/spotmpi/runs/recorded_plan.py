"""The plan in a run folder: what a run was started with, and the cluster that a copy belongs to."""

from __future__ import annotations

import base64
import io
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import protocol
from spotmpi.agent.files import error_text, is_folder
from spotmpi.agent.pod_context import AGENT_PLAN, CODE_ARCHIVE
from spotmpi.agent.schema import read_object, work_in
from spotmpi.core.errors import input_error
from spotmpi.core.names import EKS, KUBERNETES, SLURM, RunPaths

_LARGEST_CODE = 1 << 28  # bytes of files that an archive in a plan may have; itself it is of 1 MiB at most
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class RecordedPlan(NamedTuple):
    """The plan in a run folder; what its backend lacks is None or empty."""

    backend: str
    folder: str | None  # where a local run's commands start
    context: str | None
    namespace: str | None
    stack: str | None  # the name of the environment
    environment: dict[str, Any] | None  # the outputs of the environment
    objects: tuple[dict[str, Any], ...]  # of the cluster
    work: dict[str, Any] | None  # what identifies the work of a local run
    oversubscribed: bool


def read(paths: RunPaths) -> RecordedPlan:
    """The plan that the run was started with; InputError where it cannot be read."""
    values = _values(paths)
    return RecordedPlan(
        backend=str(values.get("backend")),
        folder=text_of(values.get("folder")),
        context=text_of(values.get("context")),
        namespace=text_of(values.get("namespace")),
        stack=text_of(values.get("environment")),
        environment=outputs if isinstance(outputs := values.get("outputs"), dict) else None,
        objects=tuple(_objects(values)),
        work=work_in(values.get("work")) or None,
        oversubscribed=bool(values.get("oversubscribed")),
    )


def work(paths: RunPaths) -> dict[str, Any]:
    """What identifies the work of a run on any backend, as it was planned; InputError where the plan cannot be read."""
    values = _values(paths)
    planned = (values, values.get("agents"), *map(read_object, _contents(values, "data", AGENT_PLAN)))
    return next((found for each in planned if isinstance(each, dict) and (found := work_in(each.get("work")))), {})


def shipped_code(paths: RunPaths) -> dict[str, bytes] | None:
    """The files of the user's code by name, as the record of a run has them; None where it has no copy."""
    import tarfile  # few commands need it

    from spotmpi.agent.store import files

    if is_folder(paths.code):  # where its command has started, and may have written other files
        names = files(str(paths.code))
        return {name: (paths.code / name).read_bytes() for name in names}
    packed = _contents(_plan_object(paths), "binaryData", CODE_ARCHIVE)
    if not packed:
        return None
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed[0])), mode="r:gz") as archive:
        members = [each for each in archive if each.isreg()]
        if sum(each.size for each in members) > _LARGEST_CODE:
            raise input_error("run", paths.id, f"the code in its {paths.plan.name} has more than 256 MiB")
        contents = ((each.name, archive.extractfile(each)) for each in members)
        return {name: content.read() for name, content in contents if content}


def _objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a cluster in a plan, without what is none."""
    objects = values.get("objects")
    return [each for each in objects if isinstance(each, dict)] if isinstance(objects, list) else []


def _contents(values: dict[str, Any], field: str, name: str) -> list[str]:
    """The texts called *name* in the data of ConfigMaps in a plan."""
    data = [each.get(field) for each in _objects(values)]
    return [each[name] for each in data if isinstance(each, dict) and protocol.is_text(each.get(name))]


def _values(paths: RunPaths) -> dict[str, Any]:
    """The plan in a run folder; InputError where it cannot be read."""
    try:
        values = json.loads(paths.plan.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        remedy = "restore it from a copy"
        raise input_error(
            "run", paths.id, f"its {paths.plan.name} cannot be read: {error_text(error)}; {remedy}"
        ) from error
    return values


def worker_price(paths: RunPaths) -> float | None:
    """Dollars per hour of one more node for a stream, from the spec; None where unknown, or where nodes cost nothing.

    The nodes of a local run are all this machine.
    """
    values = _plan_object(paths)
    if values.get("backend") != KUBERNETES:
        return None
    try:
        spec = tomllib.loads(paths.spec.read_text(encoding="utf-8"))
        price = spec.get("stream", {}).get("workers", {}).get("price", spec.get("price"))
    except (AttributeError, OSError, ValueError):
        return None
    return float(price) if isinstance(price, int | float) else None


class ClusterNamespace(NamedTuple):
    """The cluster and namespace of a run; a *context* of None is the cluster of the pod that this is."""

    context: str | None
    namespace: str

    def __str__(self) -> str:
        context = self.context or ""
        cluster = "cluster" if context.startswith(EKS) else "context"
        return f"namespace {self.namespace} of {f'{cluster} {context.removeprefix(EKS)}' if context else 'the cluster'}"


class SlurmLogin(NamedTuple):
    """The login node through which a run's Slurm is used; a *host* of None is any machine that has its commands."""

    host: str | None

    def __str__(self) -> str:
        return f"Slurm by way of {self.host}" if self.host else "Slurm"


def slurm_of(paths: RunPaths) -> SlurmLogin | None:
    """The Slurm of the run in the folder; None where it is on none."""
    values = _plan_object(paths)
    return SlurmLogin(text_of(values.get("host"))) if values.get("backend") == SLURM else None


def cluster_of(paths: RunPaths) -> ClusterNamespace | SlurmLogin | None:
    """The namespace of the run that the folder is a copy of, or its Slurm; None for a run of this machine."""
    values = _plan_object(paths)
    if values.get("backend") != KUBERNETES:
        return slurm_of(paths)
    return ClusterNamespace(text_of(values.get("context")), str(values.get("namespace")))


def _plan_object(paths: RunPaths) -> dict[str, Any]:
    """The plan in a run folder, however deep pod templates and volumes nest it; empty without one.

    Raises:
        OSError: the disk fails; the run may be one of a cluster then.
    """
    return json_object(paths.plan, json.loads)


def json_object(path: Path, read: Callable[[str], Any] = protocol.read_json) -> dict[str, Any]:
    """The JSON object in a file; empty without one, OSError where the disk fails."""
    try:
        values = read(path.read_text(encoding="utf-8", errors="replace"))
    except (*_ABSENT, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def text_of(value: Any) -> str | None:
    """A value of JSON as text; None where it is null."""
    return None if value is None else str(value)
