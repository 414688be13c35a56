"""The results of a prediction as a data set, which has the run's model and data sets as its parents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from spotmpi.agent import store as files_of_folder
from spotmpi.api import runs
from spotmpi.api.datasets import DataSet
from spotmpi.api.run_manifest import run_manifest
from spotmpi.backends.targets import TargetLike
from spotmpi.core import file_status
from spotmpi.core.errors import input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Echo
from spotmpi.entries.manifest import DATASET, FORMAT, describe, digest_of
from spotmpi.entries.store import Store
from spotmpi.runs.reader import RunState


def keep_results(state: RunState, name: str, store: Store, on: TargetLike, echo: Echo) -> DataSet:
    """Keep the results of a prediction as the next version of the data set *name*.

    Its key is over the files and all that they were made from: equal results of the same model and data are one entry.

    Raises:
        InputError: the run has no results in its folder.
        SpotmpiError: an entry that it has read is not in the store, or that cannot be written.
    """
    paths = RunPaths(runs.pull(state.id, on, echo))
    folder = paths.stream / "results"
    found = files_of_folder.files(str(folder)) if file_status.is_folder(folder) else iter(())
    names = [path for path in found if not Path(path).name.startswith(".")]  # unfinished ones of a lost attempt
    if not names:
        raise input_error("keep", name, f"run {state.id} has no results in its folder: let `write` be a format")
    files = tuple(describe(folder / path, path, _rows(folder / path)) for path in names)
    manifest = run_manifest(DATASET, replace(state, folder=str(paths.folder)), name, files, (), store)
    content = [[file.path, file.sha256] for file in files]
    code = manifest.code.digest if manifest.code else None
    inputs = [[each.argument, each.digest] for each in manifest.inputs]
    parents = [[each.kind, each.name, each.key] for each in manifest.parents]
    manifest = msgspec.structs.replace(manifest, key=digest_of([FORMAT, content, code, inputs, parents]))
    return DataSet(store.add(manifest, {path: str((folder / path).absolute()) for path in names}), store)


def _rows(path: Path) -> int | None:
    """The rows of a file of results; None for one that is no table."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return int(pyarrow.parquet.read_metadata(path).num_rows)
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            return sum(1 for _ in file)
    return None
