"""The key `keep` of a spec: the first command that sees that the run has succeeded keeps what it has made.

That is a model, and of a prediction a data set. At the submission the run folder gets a file with the name and the
store; it has the version later.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from spotmpi.agent import record
from spotmpi.agent import store as files_of_folder
from spotmpi.agent.files import error_text, is_file, is_folder, write_atomically
from spotmpi.api import runs
from spotmpi.api.datasets import DataSet
from spotmpi.api.entries import Entry
from spotmpi.api.models import keep
from spotmpi.api.run_manifest import run_manifest
from spotmpi.backends.targets import TargetLike
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.structs import inspected
from spotmpi.core.wording import Echo, silent
from spotmpi.entries.manifest import DATASET, FORMAT, MODEL, WORDS, describe, digest_of
from spotmpi.entries.store import Store
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec.validate_cluster import predicts
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.sources import require_one_table

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec


@inspected
class KeepRequest(msgspec.Struct, frozen=True):
    """What a run becomes a version of: an entry of *kind* and *name* in a store, and as which version it is kept."""

    kind: str
    name: str
    store: str
    kept: str | None = None


def request(folder: Path, spec: JobSpec) -> None:
    """Note what the run in *folder* becomes a version of, in the store of now."""
    assert spec.keep
    _write(RunPaths(folder), KeepRequest(DATASET if predicts(spec) else MODEL, spec.keep, Store().storage.url))


def keep_requested(state: RunState, on: TargetLike = None, echo: Echo = silent) -> None:
    """Keep what a run has made that has succeeded and asks for it; *echo* tells what was kept, or why that failed."""
    paths = RunPaths(Path(state.folder))
    if state.state != record.SUCCEEDED or not is_file(paths.keep):
        return
    other = f", `spotmpi models keep {state.id} NAME` keeps other files"
    try:
        wanted = _read(paths)
        other = other if wanted.kind == MODEL else ""
        if wanted.kept is not None:
            return
        kept: Entry
        if wanted.kind == MODEL:
            kept = keep(state, wanted.name, store=wanted.store, on=on, echo=echo)
        else:
            kept = keep_results(state, wanted.name, Store(wanted.store), on, echo)
    except SpotmpiError as error:
        again = "" if isinstance(error.__cause__, StreamError) else f"; `spotmpi status {state.id}` tries again{other}"
        echo(f"what run {state.id} has made is not kept: {error}{again}")
        return
    with contextlib.suppress(OSError):  # else the next command finds the version that there is
        _write(paths, msgspec.structs.replace(wanted, kept=str(kept)))
    echo(f"the {WORDS[wanted.kind]} is kept as {kept}: {kept.path}")


def results_of(paths: RunPaths) -> DataSet | None:
    """The data set of a prediction that has ended; None where it is not kept, and of a run that has trained a model."""
    wanted = _read(paths)
    if wanted.kept is None or wanted.kind != DATASET:
        return None
    store = Store(wanted.store)
    return DataSet(store.find(wanted.kept, DATASET), store)


def keep_ended(echo: Echo) -> None:
    """Keep what all runs have made that ask for it and have succeeded as far as this machine knows."""
    folder = names.default_runs_folder()
    if is_folder(folder):
        for paths in map(RunPaths, sorted(folder.iterdir())):
            if is_file(paths.keep):
                keep_requested(reader.state(paths), echo=echo)


def _read(paths: RunPaths) -> KeepRequest:
    try:
        return msgspec.json.decode(paths.keep.read_bytes(), type=KeepRequest)
    except (OSError, msgspec.DecodeError) as error:
        raise SpotmpiError(f"{paths.keep} cannot be read: {error_text(error)}") from error


def _write(paths: RunPaths, wanted: KeepRequest) -> None:
    write_atomically(paths.keep, msgspec.json.encode(wanted).decode() + "\n")


def keep_results(state: RunState, name: str, store: Store, on: TargetLike, echo: Echo) -> DataSet:
    """Keep the results of a prediction as the next version of the data set *name*, with its model and data as parents.

    Its key is over the files and all that they were made from: equal results of the same model and data are one entry.

    Raises:
        InputError: the run has no results in its folder.
        SpotmpiError: the results are no one table, an entry that it has read is not in the store, or that cannot be
            written.
    """
    paths = RunPaths(runs.pull(state.id, on, echo))
    folder = paths.stream / "results"
    found = files_of_folder.files(str(folder)) if is_folder(folder) else iter(())
    results = [path for path in found if not Path(path).name.startswith(".")]  # unfinished ones of a lost attempt
    if not results:
        raise input_error("keep", name, f"run {state.id} has no results in its folder: let `write` be a format")
    tables = {path: str(folder / path) for path in results if "/" not in path}  # below are files that a function named
    try:
        require_one_table(str(folder), tables)
    except StreamError as error:
        raise SpotmpiError(f"{error}, then predict again") from error
    except SourceError as error:
        raise SpotmpiError(str(error)) from error
    files = tuple(describe(folder / path, path, _rows(folder / path)) for path in results)
    manifest = run_manifest(DATASET, replace(state, folder=str(paths.folder)), name, files, (), store)
    content = [[file.path, file.sha256] for file in files]
    code = manifest.code.digest if manifest.code else None
    inputs = [[each.argument, each.digest] for each in manifest.inputs]
    parents = [[each.kind, each.name, each.key] for each in manifest.parents]
    manifest = msgspec.structs.replace(manifest, key=digest_of([FORMAT, content, code, inputs, parents]))
    return DataSet(store.add(manifest, {path: str((folder / path).absolute()) for path in results}), store)


def _rows(path: Path) -> int | None:
    """The rows of a file of results; None for one that is not a table."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return int(pyarrow.parquet.read_metadata(path).num_rows)
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    return None
