"""The key `keep` of a spec: the first command that sees that the run has succeeded keeps its model.

At the submission the run folder gets a file with the name of the model and its store; it has the version later.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from spotmpi.agent import record
from spotmpi.agent.files import write_atomically
from spotmpi.api.models import keep
from spotmpi.backends.targets import TargetLike
from spotmpi.core import file_status, names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Say
from spotmpi.entries.store import Store
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState


def request(folder: Path, model: str) -> None:
    """Note that the run in *folder* becomes a version of *model* in the store of now."""
    _write(RunPaths(folder), model, Store().storage.url, None)


def keep_requested(state: RunState, on: TargetLike = None, say: Say = lambda text: None) -> None:
    """Keep the model of a run that has succeeded and asks for it; *say* tells what was kept, or why that failed."""
    paths = RunPaths(Path(state.folder))
    if state.state != record.SUCCEEDED or not file_status.is_file(paths.keep):
        return
    try:
        wanted = json.loads(paths.keep.read_text())
        model, store = str(wanted["model"]), str(wanted["store"])
        if wanted["kept"] is not None:
            return
        kept = keep(state, model, store=store, on=on, say=say)
    except (SpotmpiError, OSError, ValueError, KeyError, TypeError) as error:
        again = f"`spotmpi models keep {state.id} NAME` keeps it"
        say(f"the model of run {state.id} is not kept: {error}; {again} once that is mended")
        return
    with contextlib.suppress(OSError):  # else the next command finds the version that there is
        _write(paths, model, store, str(kept))
    say(f"the model is kept as {kept}: {kept.path}")


def keep_ended(say: Say, runs_folder: Path | None = None) -> None:
    """Keep the models of all runs that ask for it and have succeeded as far as this machine knows."""
    folder = runs_folder or names.default_runs_folder()
    if file_status.is_folder(folder):
        for paths in map(RunPaths, sorted(folder.iterdir())):
            if file_status.is_file(paths.keep):
                keep_requested(reader.state(paths), say=say)


def _write(paths: RunPaths, model: str, store: str, kept: str | None) -> None:
    write_atomically(paths.keep, json.dumps({"model": model, "store": store, "kept": kept}) + "\n")
