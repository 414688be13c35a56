"""`spotmpi stop`: end a run, with a checkpoint."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, RunId, TargetOptions


def command(
    run: RunId,
    now: Annotated[bool, typer.Option("--now", help="Kill it without a checkpoint.")] = False,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Stop a run after a checkpoint and wait until it has ended."""
    from spotmpi.api import stopping
    from spotmpi.cli import tables
    from spotmpi.core.wording import echo

    state = stopping.stop(run, now, on=where.target, echo=echo)
    tables.show_status(state, as_json)
