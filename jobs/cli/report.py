"""`spotmpi report`: what recorded runs or a sweep came to."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.options import Json, RunsFolder


def command(
    ids: Annotated[
        list[str] | None, typer.Argument(help="A sweep, or runs of the same work; the newest by default.", metavar="ID")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page, picture, Markdown and JSON.", metavar="FOLDER"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Show runs of different work side by side, marked.")] = False,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Print a table of iterations/s and efficiency, and write an HTML page, a picture, Markdown, JSON and CSV."""
    from jobs.cli import measure

    measure.report(ids or [], out, runs, force, json)
