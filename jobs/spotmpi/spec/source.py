"""The forms in which functions take a spec: a JobSpec, a TOML file's path, its values, or a command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.spec import job
from spotmpi.spec.job import JobSpec

_DATASETS, _MODELS = "datasets:", "models:"  # before the name or key of an entry of the store
Source = JobSpec | Path | str | dict[str, Any] | list[str]  # a str is a path, a list is a command


def read_spec(source: Source, overrides: Iterable[str] = ()) -> JobSpec:
    """The spec in *source* with ``key.path=value`` *overrides* applied; WrongKeys with every problem.

    A command has the launcher ``none`` and is not retried after a failure, unless the overrides set it.
    """
    if isinstance(source, JobSpec):
        source = source.canonical()
    if isinstance(source, list):
        source = {"command": source, "launcher": "none", "limits": {"failures": 0}}
    if isinstance(source, dict):
        return with_entries(job.from_values(source, overrides))
    return with_entries(job.load(Path(source), overrides))


def with_entries(spec: JobSpec) -> JobSpec:
    """*spec* with the places of the entries that `data`, `init` and `stream.source` name; these have their keys.

    Raises:
        InputError: there is no such entry.
    """
    changes: dict[str, Any] = {}
    if spec.data and spec.data.path.startswith(_DATASETS):
        changes["data"] = spec.data.model_copy(update={"path": _place(spec.data.path)})
    if spec.init and spec.init.startswith(_MODELS):
        changes["init"] = _place(spec.init)
    if spec.stream and spec.stream.source and spec.stream.source.startswith(_DATASETS):
        changes["stream"] = spec.stream.model_copy(update={"source": _place(spec.stream.source)})
    return spec.model_copy(update=changes) if changes else spec


def _place(text: str) -> str:
    from spotmpi.entries.store import Store  # few specs name an entry

    store = Store()
    return store.place(store.find(text).reference)


def write_spec(spec: JobSpec, path: Path) -> None:
    """Write *spec* to a new file; paths below the file's folder are relative to it. InputError if *path* exists."""
    write_new_file(path, spec.to_toml(path.parent.absolute()))


def write_new_file(path: Path, text: str) -> None:
    """Write *text* to a new file, whole or not at all; InputError if *path* exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink()  # else the next try would be refused, since it exists
                raise
    except FileExistsError:
        raise input_error("path", str(path), "exists already; remove it or name another file") from None
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}") from error
