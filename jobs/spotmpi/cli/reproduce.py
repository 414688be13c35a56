"""`spotmpi reproduce`: make a file again, and compare."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.entries import StoreOption
from spotmpi.cli.options import Json, On
from spotmpi.core.wording import counted


def command(
    file: Annotated[
        str,
        typer.Argument(
            help="A file of the store or of a run, its folder, datasets:NAME@KEY, or models:NAME.", metavar="FILE"
        ),
    ],
    code: Annotated[
        Path | None,
        typer.Option("--code", help="Folder of the modules of data sets (default: the current one).", metavar="FOLDER"),
    ] = None,
    store: StoreOption = None,
    on: On = None,
    as_json: Json = False,
) -> None:
    """Make a file again from the raw data and compare it bit for bit; exit 1 if it differs."""
    from spotmpi.api.reproduce import reproduce

    result = reproduce(file, code, on, store)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        print(
            "\n".join(f"different: {each}" for each in result.different)
            or f"identical: {counted(result.files, 'file')}"
        )
    if result.different:
        raise typer.Exit(1)
