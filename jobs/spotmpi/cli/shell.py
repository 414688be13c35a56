"""`spotmpi shell`: a shell in a node of a run."""

from typing import Annotated

import typer

from spotmpi.cli.options import On, RunId, RunsFolder, target


def command(
    run: RunId,
    node: Annotated[int, typer.Option("--node", help="The node to open it in.")] = 0,
    on: On = None,
    runs: RunsFolder = None,
) -> None:
    """Open a shell in the pod of a node.

    Needs kubectl; for a run on this machine the shell opens in the run's folder.
    """
    import subprocess

    from spotmpi.api import runs as api

    ended = subprocess.run(api.shell_command(run, node, target(on, runs)))
    raise typer.Exit(ended.returncode)
