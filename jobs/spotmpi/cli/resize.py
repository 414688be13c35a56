"""`spotmpi resize`: the number of workers of a pool or stream."""

from typing import Annotated

import typer

from spotmpi.cli.options import RunId, TargetOptions

Stage = Annotated[
    str | None,
    typer.Option(
        "--stage", help="prepare (the default), or postprocess where that has workers of its own.", metavar="STAGE"
    ),
]


def command(
    run: RunId,
    workers: Annotated[int, typer.Argument(help="The new number of workers.", metavar="WORKERS")],
    stage: Stage = None,
    where: TargetOptions = TargetOptions(),
) -> None:
    """Change the number of workers of a pool, or of a run with a stream.

    The command does not wait for them to start or leave. Other workers execute what a removed one had left.
    """
    from spotmpi.api import pools

    pools.resize(run, workers, where.target, stage)
