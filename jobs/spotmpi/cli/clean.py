"""`spotmpi clean`: remove the records of old runs."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, RunsFolder, target


def command(
    older: Annotated[str, typer.Option("--older", help="Runs that ended longer ago than this, such as 30d.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it they are only shown.")] = False,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Show the runs that ended a while ago, and with --yes delete their folders."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.cli.view import say
    from spotmpi.spec.job import read_duration

    found = api.clean(read_duration("--older", older), yes, target(None, runs), say)
    tables.show_runs(found, json)
    say(f"{len(found)} runs deleted" if yes else f"{len(found)} runs; --yes deletes them")
