"""`spotmpi shell`: a shell where a run is."""

from typing import Annotated

import typer

from spotmpi.cli.options import On, RunId, RunsFolder, target


def command(
    run: RunId,
    node: Annotated[int, typer.Option("--node", help="The node to look into.")] = 0,
    on: On = None,
    runs: RunsFolder = None,
) -> None:
    """Open a shell in the pod of a node, through kubectl; for a run on this machine, in its folder."""
    import subprocess

    from spotmpi.api import runs as api

    done = subprocess.run(api.shell_command(run, node, target(on, runs)))
    raise typer.Exit(done.returncode)
