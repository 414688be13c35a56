"""`spotmpi stop`: end a run, with a checkpoint."""

from typing import Annotated

import typer

from jobs.cli.options import Json, On, RunId, RunsFolder, where


def command(
    run: RunId,
    now: Annotated[bool, typer.Option("--now", help="Kill it without a checkpoint.")] = False,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Stop a run after a checkpoint and wait until it has ended."""
    from jobs import api
    from jobs.cli import tables

    tables.show_status(api.stop(run, now, where=where(on, runs)), json)
