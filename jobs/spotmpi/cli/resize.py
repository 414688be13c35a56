"""`spotmpi resize`: the number of workers of a pool."""

from typing import Annotated

import typer

from spotmpi.cli.options import On, RunId, RunsFolder, target


def command(
    run: RunId,
    workers: Annotated[int, typer.Argument(help="How many workers it shall have.")],
    on: On = None,
    runs: RunsFolder = None,
) -> None:
    """Change the number of workers of a pool.

    They come and go some time after this returns; calls of a worker that goes are executed by another one.
    """
    from spotmpi.api import pools

    pools.resize(run, workers, target(on, runs))
