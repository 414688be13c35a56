"""What `spotmpi data` prints of entries of the store: lists, one of them, differences and damage."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotmpi.entries.manifest import Manifest

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Folder or URL of the store (default: $SPOTMPI_STORE, else the folder store beside that of runs).",
        metavar="STORE",
    ),
]
_FILES = 20  # that `show` prints


def show_list(manifests: Sequence[Manifest], as_json: bool) -> None:
    """Print entries, the oldest first."""
    from spotmpi.cli.tables import show_table

    if as_json:
        print(json.dumps([summary(each) for each in manifests]))
        return
    rows = [
        (
            each.name,
            each.key[:12],
            f"{datetime.fromtimestamp(each.created):%Y-%m-%d %H:%M}",
            "" if each.rows is None else f"{each.rows:,}",
            f"{each.bytes / 1e6:,.1f}",
            str(len(each.files)),
        )
        for each in manifests
    ]
    show_table(("NAME", "KEY", "CREATED", "ROWS", "MB", "FILES"), rows, right=(3, 4, 5))


def summary(manifest: Manifest) -> dict[str, Any]:
    """The most important of an entry, as JSON values."""
    size = {"rows": manifest.rows, "bytes": manifest.bytes, "files": len(manifest.files)}
    return {"name": manifest.name, "key": manifest.key, "created": manifest.created, **size}


def show_manifest(manifest: Manifest, place: str, as_json: bool) -> None:
    """Print all that a manifest says of an entry whose files are at *place*, of many files the first ones."""
    from spotmpi.core.printable import printable

    if as_json:
        import msgspec

        print(json.dumps({**msgspec.to_builtins(manifest), "place": place}))
        return
    for name, text in _facts(manifest, place):
        print(f"{name:<10} {printable(text)}")


def _facts(manifest: Manifest, place: str) -> Iterator[tuple[str, str]]:
    yield "key", manifest.key
    yield "files", place
    rows = "" if manifest.rows is None else f"{manifest.rows:,} rows, "
    yield "size", f"{rows}{manifest.bytes / 1e6:,.1f} MB in {len(manifest.files)} files"
    yield "created", f"{datetime.fromtimestamp(manifest.created):%Y-%m-%d %H:%M:%S}"
    for argument, value in manifest.arguments.items():
        yield "argument", f"{argument} = {value!r}"
    for each in manifest.inputs:
        yield "input", f"{each.argument} = {each.source}" + (f" ({len(each.files)} files)" if each.files else "")
    if manifest.code:
        yield "code", f"{manifest.details.get('function', '')} ({', '.join(manifest.code.sources)})"
        yield "packages", ", ".join(f"{name} {version}" for name, version in manifest.code.packages.items())
        if manifest.code.commit:
            yield "commit", manifest.code.commit + (" with changes" if manifest.code.diff else "")
    if manifest.image:
        yield "image", " ".join(manifest.image.values())
    if manifest.run:
        yield "run", manifest.run
    if manifest.cost is not None:
        yield "cost", f"${manifest.cost:.2f}"
    for file in manifest.files[:_FILES]:
        yield "file", f"{file.path}  {file.bytes:,} bytes  {file.sha256[:12]}"
    if len(manifest.files) > _FILES:
        yield "", f"and {len(manifest.files) - _FILES} more files (--json has all)"
