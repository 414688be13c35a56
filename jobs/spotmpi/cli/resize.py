"""`spotmpi resize`: the number of workers of a pool or stream."""

from typing import Annotated

import typer

from spotmpi.cli.options import On, RunId, RunsFolder, target


def command(
    run: RunId,
    workers: Annotated[int, typer.Argument(help="How many workers it shall have.")],
    on: On = None,
    runs: RunsFolder = None,
) -> None:
    """Change the number of workers of a pool, or of a run with a stream.

    They come and go some time after this returns; another one takes over what a worker that goes had to do.
    """
    from spotmpi.api import pools

    pools.resize(run, workers, target(on, runs))
