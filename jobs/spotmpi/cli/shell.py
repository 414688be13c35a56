"""`spotmpi shell`: a shell in a node of a run."""

import typer

from spotmpi.cli.options import Node, RunId, TargetOptions


def command(
    run: RunId,
    node: Node = "0",
    where: TargetOptions = TargetOptions(),
) -> None:
    """Open a shell in the pod of a node or worker.

    Needs kubectl for a pod. On Slurm it is a step of the job; on this machine it opens in the run's folder.
    """
    import subprocess

    from spotmpi.api import runs as api

    ended = subprocess.run(api.shell_command(run, node, where.target))
    raise typer.Exit(ended.returncode)
