"""`spotmpi report`: what recorded runs or a sweep came to."""

from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.options import Json, RunsFolder


def command(
    ids: Annotated[
        list[str] | None, typer.Argument(help="A sweep, or runs of the same work; the newest by default.", metavar="ID")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page, picture, Markdown and JSON.", metavar="FOLDER"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Show runs of different work side by side, marked.")] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", help="Say what changed from one sweep to another, and if that is more than noise."),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option("--fail-below", help="With --compare: exit 1 where a rate fell below this share, such as 0.95."),
    ] = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Print a table of iterations/s and efficiency, and write an HTML page, a picture, Markdown, JSON and CSV."""
    from spotmpi.cli import comparison, studies
    from spotmpi.core.errors import input_error

    if fail_below is not None and not (compare and 0 < fail_below <= 1):
        raise input_error(
            "--fail-below", fail_below, "give a share above 0 and up to 1, such as 0.95, together with --compare A B"
        )
    if compare and ids:
        raise input_error("--compare", " ".join(ids), "names both sweeps itself; leave the other ids out")
    if compare:
        comparison.show(*compare, fail_below, runs, force, json)
    studies.report(ids or [], out, runs, force, json)
