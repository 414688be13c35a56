"""`spotmpi clean`: delete the records of old runs."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, RunsFolder, TargetOptions


def command(
    older: Annotated[
        str, typer.Option("--older", help="Runs that ended longer ago than this, such as 30d.", metavar="AGE")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it they are only listed.")] = False,
    runs: RunsFolder = None,
    as_json: Json = False,
) -> None:
    """List runs that ended long ago, and delete their records.

    Nothing is deleted without --yes.
    """
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.core.wording import echo

    states = api.clean(older, yes, TargetOptions(runs=runs).target, echo)
    if states or as_json:
        tables.show_runs(states, as_json)
    if yes:  # some may be kept, as those of other users
        echo(f"runs deleted: {len(states)}")
    else:
        echo(
            f"runs: {len(states)}; --yes deletes them"
            if states
            else f"no run of this folder ended longer ago than {older}"
        )
