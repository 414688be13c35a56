"""`spotmpi list`: the recorded runs."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, RunsFolder, target


def command(
    mine: Annotated[bool, typer.Option("--mine", help="Only the runs that you submitted.")] = False,
    on: On = None,
    runs: RunsFolder = None,
    as_json: Json = False,
) -> None:
    """List runs, oldest first."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.core.wording import echo

    tables.show_runs(api.list_runs(target(on, runs), mine, echo), as_json)
