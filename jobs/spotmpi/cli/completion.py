"""What a shell offers after Tab, from names of folders alone: nobody waits for imports, a cluster or a bucket."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import typer

from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.core import names

_KINDS = {"data": "datasets", "models": "models"}  # by groups of commands


def runs(context: typer.Context) -> list[str]:
    """The ids of runs."""
    folder = _runs_folder(context)
    return [name for name in _folders(folder) if names.RunPaths(folder / name).events.exists()]


def runs_and_sweeps(context: typer.Context) -> list[str]:
    """The ids of runs and sweeps."""
    return [*runs(context), *_folders(_runs_folder(context) / names.SWEEPS)]


def entries(context: typer.Context) -> list[str]:
    """The names of data sets, or of models, of a store in a folder."""
    store = Path(context.params.get("store") or names.default_store())
    group = (context.parent and context.parent.info_name) or ""
    return _folders(store / _KINDS.get(group, ""))


def stacks() -> list[str]:
    """The stacks of the current folder, or of the project."""
    for folder in (Path("stacks"), names.pulumi_project() / "stacks"):
        with contextlib.suppress(OSError):
            found = [each.name.split(".") for each in os.scandir(folder)]
            return [parts[1] for parts in found if (parts[0], parts[-1], len(parts)) == ("Pulumi", "yaml", 3)]
    return []


def targets() -> list[str]:
    """Where a run can be, but for namespaces and the like."""
    return ["local", "kubernetes", "slurm", *stacks()]


def launchers() -> list[str]:
    """What can start the ranks."""
    return list(LAUNCHERS)


def _runs_folder(context: typer.Context) -> Path:
    return names.absolute(context.params.get("runs") or names.default_runs_folder())


def _folders(folder: Path) -> list[str]:
    """Those in a folder that are not hidden, as what is being written is."""
    try:
        return [each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith(".")]
    except OSError:
        return []
