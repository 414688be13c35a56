"""`spotmpi models`: what runs have trained, as versions of a model in the store."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotmpi.cli.entries import StoreOption
from spotmpi.cli.options import Json, On, RunId, RunsFolder, target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spotmpi.entries.manifest import Manifest
    from spotmpi.entries.models import Promotion

app = typer.Typer(
    help="Keep what runs have trained as versions of a model; list, compare, promote and pull.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
ModelName = Annotated[
    str, typer.Argument(help="NAME (its newest), NAME:VERSION, NAME:ALIAS, NAME@KEY or KEY.", metavar="MODEL")
]
_METRICS = 3  # that the list shows


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
    print(json.dumps(_summary(kept.manifest, ())) if as_json else f"{kept}  {kept.path}")


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Only versions of this name.", metavar="NAME")] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """List the models of the store with their aliases, oldest first."""
    from spotmpi.api.view import say
    from spotmpi.cli.tables import show_table
    from spotmpi.entries import models
    from spotmpi.entries.manifest import MODEL
    from spotmpi.entries.store import Store

    opened = Store(store)
    found = opened.list(MODEL, name, on_damage=say)
    named = {each.name: models.aliases(opened, each.name) for each in found}
    summaries = [_summary(each, _current(named[each.name], models.version_of(each))) for each in found]
    if as_json:
        print(json.dumps(summaries))
        return
    titles = ("MODEL", "ALIASES", "CREATED", "MB", "RUN", "METRICS")
    show_table(titles, [_row(each) for each in summaries], right=(3,))


@app.command("show")
def show(model: ModelName, store: StoreOption = None, as_json: Json = False) -> None:
    """Show what a model was made from, its files and aliases."""
    from spotmpi.api import models as api
    from spotmpi.cli.entries import show_manifest
    from spotmpi.entries import models

    found = api.find(model, store)
    named = models.aliases(found.store, found.name)
    values = {alias: [_promotion(each) for each in past] for alias, past in named.items()}
    show_manifest(found.manifest, found.store, as_json, {"version": found.version, "history": values})
    for alias, past in {} if as_json else named.items():
        print(f"history of {found.name}:{alias}:")
        for each in past:
            print(f"  {_moment(each.time)}  {f'version {each.version}' if each.version else 'removed'}, by {each.by}")


@app.command("diff")
def diff(
    one: Annotated[str, typer.Argument(help="A model, as `show` takes it.", metavar="A")],
    other: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Print what differs between two models."""
    from spotmpi.cli.entries import show_differences
    from spotmpi.entries import models
    from spotmpi.entries.differences import differences
    from spotmpi.entries.store import Store

    opened = Store(store)
    show_differences(differences(models.find(opened, one), models.find(opened, other)), as_json)


@app.command("promote")
def promote(
    model: ModelName,
    alias: Annotated[str, typer.Argument(help="The alias, such as prod.", metavar="ALIAS")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias, if it names this version.")] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Let an alias name a version.

    Of two promotions at the same time one holds, and the other one fails.
    """
    from spotmpi.api import models as api

    found = api.find(model, store)
    done = api.promote(str(found), alias, remove, store)
    if as_json:
        print(json.dumps({"name": found.name, "alias": alias, **_promotion(done)}))
    else:
        print(f"{found.name}:{alias} was removed" if remove else f"{found.name}:{alias} is {found}")


@app.command("pull")
def pull(
    model: ModelName,
    into: Annotated[
        Path | None, typer.Argument(help="A new folder (default: NAME-VERSION).", metavar="FOLDER", show_default=False)
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Copy the files of a model to a new folder."""
    from spotmpi.api import models as api
    from spotmpi.core import names

    found = api.find(model, store)
    folder = api.pull(str(found), into, store)
    text = f"{found} -> {names.shown(folder)} ({found.manifest.bytes / 1e6:,.1f} MB)"
    print(json.dumps({**_summary(found.manifest, ()), "folder": str(folder)}) if as_json else text)


@app.command("verify")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models (default: all of the store).", metavar="MODEL...")
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Compare every file with its SHA-256; exit 1 if one is wrong."""
    from spotmpi.cli.entries import show_problems
    from spotmpi.core.errors import SpotmpiError
    from spotmpi.entries import models
    from spotmpi.entries.manifest import MODEL
    from spotmpi.entries.store import Store

    opened, problems = Store(store), list[str]()
    chosen = [models.find(opened, each) for each in names or ()] or opened.list(MODEL, on_damage=problems.append)
    for name in sorted({each.name for each in chosen}):
        try:
            models.aliases(opened, name)
        except SpotmpiError as error:
            problems.append(str(error))
    show_problems(chosen, opened, problems, as_json, "models")


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(help="Models, as `show` takes them.", metavar="MODEL...")],
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Remove versions from the store.

    Refused for what an alias, another entry or the spec of a run names.
    """
    from spotmpi.api import models as api

    removed = [api.remove(name, store) for name in names]
    if as_json:
        print(json.dumps([_summary(each.manifest, ()) for each in removed]))
        return
    for each in removed:
        print(f"removed {each}")


def _summary(manifest: Manifest, aliases: Sequence[str]) -> dict[str, Any]:
    from spotmpi.cli.entries import summary

    details = {name: manifest.details[name] for name in ("version", "metrics")}
    return {**summary(manifest), **details, "aliases": list(aliases), "run": manifest.run, "cost": manifest.cost}


def _current(aliases: Mapping[str, Sequence[Promotion]], version: int) -> list[str]:
    return [alias for alias, past in aliases.items() if past[-1].version == version]


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    metrics = [f"{name}={value}" for name, value in model["metrics"].items() if isinstance(value, int | float)]
    return (
        f"{model['name']}:{model['version']}",
        ", ".join(model["aliases"]),
        _moment(model["created"]),
        f"{model['bytes'] / 1e6:,.1f}",
        model["run"],
        " ".join(metrics[:_METRICS]),
    )


def _promotion(promotion: Promotion) -> dict[str, Any]:
    return {"version": promotion.version, "time": promotion.time, "by": promotion.by}


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
