"""What `spotmpi data` and `spotmpi models` print of entries: lists, one of them, differences and damage."""

from __future__ import annotations

import json
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spotmpi.entries.manifest import Manifest
    from spotmpi.entries.store import Store

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


def show_manifest(
    manifest: Manifest, store: Store, as_json: bool, more: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Print what an entry was made from, where its files are, and of many files the first ones; as JSON also *more*."""
    from spotmpi.api.lineage import entry_node, lines
    from spotmpi.core.printable import printable

    place = store.place(manifest.reference)
    if as_json:
        import msgspec

        print(json.dumps({**msgspec.to_builtins(manifest), "place": place, **more}))
        return
    print(*map(printable, lines(entry_node(manifest, store))), sep="\n")
    print(f"files in {printable(place)}:")
    for file in manifest.files[:_FILES]:
        print(f"  {printable(file.path)}  {file.bytes:,} bytes  {file.sha256[:12]}")
    if len(manifest.files) > _FILES:
        print(f"  and {len(manifest.files) - _FILES} more (--json has all)")


def show_problems(manifests: Sequence[Manifest], store: Store, problems: list[str], as_json: bool, what: str) -> None:
    """Compare all files of entries with their SHA-256 and print what is wrong, after *problems*; then exit 1."""
    for manifest in manifests:
        problems += store.problems(manifest)
    if as_json:
        print(json.dumps({"verified": len(manifests), "problems": problems}))
    else:
        print("\n".join([*problems, f"{len(manifests)} {what} read, {len(problems)} problems"]))
    if problems:
        raise typer.Exit(1)


def show_differences(lines: Sequence[str], as_json: bool) -> None:
    """Print what differs between two versions."""
    from spotmpi.core.printable import printable

    if as_json:
        print(json.dumps(lines))
        return
    for line in lines or ["nothing that counts differs"]:
        print(printable(line))
