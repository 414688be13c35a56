"""`spotmpi models`: what runs have trained, as versions of a model in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from spotmpi.cli.entries import EntryCommands, EntryName, StoreOption, open_store, summary
from spotmpi.cli.options import Json, RunId, TargetOptions, command_group

app = command_group()


@dataclass(frozen=True)
class PredictionOptions:
    """Options that may be left out: keys of the table [stream], the spec, and what the results are called."""

    prepare: Annotated[
        str | None,
        typer.Option(
            "--prepare", help="What workers call with rows and seed of each batch.", metavar="MODULE:FUNCTION"
        ),
    ] = None
    postprocess: Annotated[
        str | None,
        typer.Option(
            "--postprocess", help="What workers call with result and seed of each batch.", metavar="MODULE:FUNCTION"
        ),
    ] = None
    batch: Annotated[int | None, typer.Option("--batch", help="Rows of a batch (default: the spec's).")] = None
    write: Annotated[
        str | None, typer.Option("--write", help="parquet, jsonl or files (default: the spec's, else parquet).")
    ] = None
    keep: Annotated[
        str | None, typer.Option("--keep", help="Name of the data set of results (default: MODEL-SET).", metavar="NAME")
    ] = None
    source: Annotated[
        Path | None,
        typer.Option("--spec", help="A spec without a command: image, nodes, limits, workers.", metavar="FILE"),
    ] = None

    @property
    def values(self) -> dict[str, Any]:
        """Those that are given, as arguments of `spotmpi.api.models.predict`."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ContentOptions:
    """Options that say what a version of a model consists of, and what it was made from besides its run."""

    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            help="A file or folder, relative to the run folder (default: the newest complete checkpoint). Repeatable.",
        ),
    ] = None
    parent: Annotated[
        list[str] | None,
        typer.Option("--parent", help="A model that it was fine-tuned from. Repeatable.", metavar="MODEL"),
    ] = None


@app.command("keep")
def keep(
    run: RunId,
    name: Annotated[str, typer.Argument(help="The model of which it becomes the next version.", metavar="NAME")],
    content: ContentOptions = ContentOptions(),
    store: StoreOption = None,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Keep what a run has trained as a version of a model.

    That is its newest complete checkpoint, or files. The same again gives the version that there is.
    """
    from spotmpi.api import models as api
    from spotmpi.core.wording import echo

    kept = api.keep(run, name, content.file or (), content.parent or (), store, where.target, echo)
    print(json.dumps(summary(kept.manifest, kept.store)) if as_json else f"{kept}  {kept.path}")


@app.command("predict")
def predict(
    model: EntryName,
    data: Annotated[
        str,
        typer.Option(
            "--data", help="datasets:NAME, or a file, folder, pattern or URL.", metavar="SET", show_default=False
        ),
    ],
    function: Annotated[
        str,
        typer.Option(
            "--with",
            help="The generator that gets the batches and yields a result for each, as flow:predict.",
            metavar="MODULE:FUNCTION",
            show_default=False,
        ),
    ],
    options: PredictionOptions = PredictionOptions(),
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Predict with a model: the results are a data set.

    Each rank loads the model once, by spotmpi.checkpoint.read() in the function.
    """
    from spotmpi.api import models as api
    from spotmpi.cli.tables import continue_command
    from spotmpi.core.wording import echo

    open_store(None)
    try:
        found = api.predict(model, data, function, on=where.target, **options.values)
    except api.NotPredicted as error:  # which is on the terminal already
        if error.state.state != "succeeded":
            echo(f"continue with: {continue_command(error.state)}")
        raise typer.Exit(error.exit_code) from error
    print(json.dumps(summary(found.manifest, found.store)) if as_json else f"{found}  {found.path}")


@app.command("push")
def push(
    model: EntryName,
    image: Annotated[str, typer.Argument(help="REGISTRY/NAME:TAG, such as ghcr.io/team/digits:3.", metavar="IMAGE")],
    sign_key: Annotated[
        Path | None,
        typer.Option("--sign-key", help="Sign it by this private key (PEM), as cosign does.", metavar="FILE"),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Push a model to a registry of images.

    Its layout is that of ModelPack, and the login that of docker.
    """
    from spotmpi.api import models as api
    from spotmpi.core.wording import echo

    opened = open_store(store)
    found = opened.find(model, "models")
    pushed = api.push(str(found), image, store, sign_key, echo)
    print(json.dumps({**summary(found, opened), "image": pushed}) if as_json else f"{found.title} -> {pushed}")


@dataclass(frozen=True)
class RegistryOptions:
    """Options for a model of a registry."""

    key: Annotated[
        Path | None,
        typer.Option(
            "--key", help="Of a registry: only if signed by this public key (PEM), as of cosign.", metavar="FILE"
        ),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option("--keep", help="Of a registry: its name here (default: as it was pushed).", metavar="NAME"),
    ] = None


@app.command("pull")
def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="NAME (its newest), NAME:VERSION, NAME:ALIAS, NAME@KEY, KEY, or REGISTRY/NAME:TAG.", metavar="MODEL"
        ),
    ],
    into: Annotated[
        Path | None,
        typer.Argument(
            help="A new folder (default: NAME-VERSION; of a registry none).", metavar="FOLDER", show_default=False
        ),
    ] = None,
    registry: RegistryOptions = RegistryOptions(),
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Copy the files of a model to a new folder.

    One of a registry becomes a version in the store first.
    """
    from spotmpi.api import models as api
    from spotmpi.core import names
    from spotmpi.core.errors import input_error
    from spotmpi.core.wording import echo, format_size

    open_store(store)
    of_registry, key, keep = api.is_image(model), registry.key, registry.keep
    if keep and not of_registry:
        raise input_error("--keep", keep, f"is for models of a registry: {model} has its name already; leave it out")
    found = api.pull_to_store(model, store, key, echo, keep) if of_registry else api.find(model, store)
    values, text = summary(found.manifest, found.store), f"{found}  {found.path}"
    if into or not of_registry:
        folder = api.pull(str(found), into, store, None if of_registry else key)
        values["folder"] = str(folder)
        text = f"{found} -> {names.display_path(folder)} ({format_size(found.manifest.bytes)})"
    print(json.dumps(values) if as_json else text)


EntryCommands("models", "model", "`spotmpi models keep RUN NAME`").add_to(app)
