"""`spotmpi models`: what runs have trained, as versions of a model in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.entries import EntryName, StoreOption, add_commands, summary
from spotmpi.cli.options import Json, On, RunId, RunsFolder, target

app = typer.Typer(
    help="Keep what runs have trained as versions of a model; list, compare, promote and pull.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.command("keep")
def keep(
    run: RunId,
    name: Annotated[str, typer.Argument(help="The model of which it becomes the next version.", metavar="NAME")],
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            help="A file or folder, relative to the run folder (default: the newest complete checkpoint). Repeatable.",
        ),
    ] = None,
    parent: Annotated[
        list[str] | None,
        typer.Option("--parent", help="A model that it was fine-tuned from. Repeatable.", metavar="MODEL"),
    ] = None,
    store: StoreOption = None,
    on: On = None,
    runs: RunsFolder = None,
    as_json: Json = False,
) -> None:
    """Keep what a run has trained as a version of a model.

    That is its newest complete checkpoint, or files. The same again gives the version that there is.
    """
    from spotmpi.api import models as api
    from spotmpi.api.view import say

    kept = api.keep(run, name, file or (), parent or (), store, target(on, runs), say)
    print(json.dumps(summary(kept.manifest, kept.store)) if as_json else f"{kept}  {kept.path}")


@app.command("pull")
def pull(
    model: EntryName,
    into: Annotated[
        Path | None, typer.Argument(help="A new folder (default: NAME-VERSION).", metavar="FOLDER", show_default=False)
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Copy the files of a model to a new folder."""
    from spotmpi.api import models as api
    from spotmpi.cli.entries import open_store
    from spotmpi.core import names

    open_store("models", store)
    found = api.find(model, store)
    folder = api.pull(str(found), into, store)
    text = f"{found} -> {names.shown(folder)} ({found.manifest.bytes / 1e6:,.1f} MB)"
    print(json.dumps({**summary(found.manifest, found.store), "folder": str(folder)}) if as_json else text)


add_commands(app, "models", "model")
