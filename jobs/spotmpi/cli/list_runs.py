"""`spotmpi list`: the recorded runs."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, TargetOptions


def command(
    mine: Annotated[bool, typer.Option("--mine", help="Only the runs that you submitted.")] = False,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """List runs, oldest first."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.core import names
    from spotmpi.core.wording import echo

    target = where.target
    states = api.list_runs(target, mine, echo)
    if states or as_json:
        tables.show_runs(states, as_json)
        return
    on, folder = target.on, names.display_path(target.folder)
    start = f"`spotmpi run{f' --on {on}' if on else ''}` starts one"
    other = "" if on else "; --runs or SPOTMPI_RUNS name another folder"
    echo(f"no runs{' of yours' if mine else ''} in {on or folder}: {start}{other}")
