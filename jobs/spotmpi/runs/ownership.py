"""Whether a run was submitted from here: the spec of another's run may not send what is on this machine.

Whoever may create a JobSet, or write to a run volume, writes the spec in a copy: the paths and variables in it would be
read from this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spotmpi.agent.files import exists
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem
from spotmpi.core.names import KUBERNETES, RunPaths
from spotmpi.runs import recorded_plan

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec

_SENT = {
    "code": "folder",
    "files": "file",
    "env_passthrough": "variable",
    "kubernetes.templates": "file",
    "dataset": "function",  # is called here, with arguments that may be files of this machine
}
_CODE = ("code", "files")
_NAMED = "named by the spec of a run that was not submitted from here"


def mark(paths: RunPaths) -> None:
    """Record that the run was submitted from this runs folder, with the spec in it."""
    paths.own.touch()


def load_for_resume(paths: RunPaths, overrides: Iterable[str]) -> JobSpec:
    """The recorded spec of a run with *overrides*; what another user's run makes is kept here only if these say so.

    Raises:
        InputError: as `load_spec`; the plan, which says whose run it is, cannot be read; or the run is a copy of one
            that was not submitted from here, and files or variables of this machine, which its spec names and
            *overrides* do not, would be sent.
    """
    from spotmpi.spec.source import from_values, load_spec, read_toml

    overrides = list(overrides)
    spec = load_spec(paths.spec, overrides)
    if is_own(paths):
        return spec
    chosen = from_values(_without_sent(read_toml(paths.spec)), overrides)
    if problems := list(_theirs(spec, chosen)):
        raise InputError(problems)
    return spec.model_copy(update={"keep": chosen.keep})


def require_own_choice(paths: RunPaths | None, spec: JobSpec) -> None:
    """InputError where the *spec* of a run that is made again on a cluster would send variables or files from here.

    That is what it names besides its code, which is compared with what the run had, and entries by name. Of a run
    without a record, in *paths*, nobody knows who has submitted it.
    """
    from spotmpi.entries.store import is_reference

    if paths is not None and is_own(paths):
        return
    problems = [
        Problem(field, _shown(value), f"this {_SENT[field]} of your machine is {_NAMED}; start it with `spotmpi run`")
        for field in _SENT
        if field not in _CODE
        for value in _sent(spec, field)
        if not _is_on_cluster(value)
    ]
    problems += [
        Problem(field, value, f"this entry of your store is {_NAMED}; start it with `spotmpi run`")
        for field, value in spec.inputs.items()
        if is_reference(value)  # what was submitted has places
    ]
    if problems:
        raise InputError(problems)


def is_own(paths: RunPaths) -> bool:
    """Whether a recorded run was submitted from here; InputError where its plan cannot be read."""
    return recorded_plan.read(paths).backend != KUBERNETES or exists(paths.own)


def _without_sent(values: Mapping[str, Any]) -> dict[str, Any]:
    """The *values* of a spec without those that name what is sent from this machine, or kept on it."""
    cluster = values.get("kubernetes")
    rest = {key: value for key, value in values.items() if key not in (*_SENT, "keep")}
    if isinstance(cluster, Mapping):
        rest["kubernetes"] = {key: value for key, value in cluster.items() if f"kubernetes.{key}" not in _SENT}
    return rest


def _theirs(spec: JobSpec, chosen: JobSpec) -> Iterator[Problem]:
    """What *spec* sends from this machine, and *chosen*, which has the user's choices alone, does not."""
    for field, what in _SENT.items():
        for value in _sent(spec, field):
            if value not in _sent(chosen, field) and not _is_on_cluster(value):
                choice = wording.option("set", f"{field}=...")
                remedy = f"this {what} of your machine is {_NAMED}"
                yield Problem(field, _shown(value), f"{remedy}; name what to send yourself, with {choice}")


def _sent(spec: JobSpec, field: str) -> list[Any]:
    value: Any = spec
    for key in field.split("."):
        value = getattr(value, key)
    return list(value) if isinstance(value, list) else [value] if value else []


def _shown(value: Any) -> str:
    return str(getattr(value, "build", value))  # of a data set its function


def _is_on_cluster(value: Any) -> bool:
    from spotmpi.spec.kubernetes import CONFIG_MAP

    return isinstance(value, str) and value.startswith(CONFIG_MAP)
