"""`spotmpi why`: what a file was made from."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from spotmpi.cli.entries import StoreOption
from spotmpi.cli.options import Json


def command(
    file: Annotated[
        str,
        typer.Argument(help="A file that spotmpi wrote, its folder, datasets:NAME@KEY or models:NAME.", metavar="FILE"),
    ],
    open_lineage: Annotated[
        str | None,
        typer.Option(
            "--openlineage",
            help="Write it as events of OpenLineage to a file (JSON Lines), or post them to a URL.",
            metavar="FILE|URL",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show what a file was made from: run, data sets, raw files, code, image, price.

    From manifests and records alone, without the machine that made it.
    """
    from spotmpi.api.lineage import lines, trace
    from spotmpi.core.wording import printable

    tree = trace(file, store)
    if open_lineage is not None:
        from spotmpi.api import open_lineage as events
        from spotmpi.core.wording import counted, echo

        echo(f"{counted(events.send(tree, open_lineage), 'event')} of OpenLineage: {open_lineage}")
    if as_json:
        print(json.dumps(tree.values()))
    elif open_lineage is None:
        for line in lines(tree):
            print(printable(line))
