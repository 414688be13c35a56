"""`spotmpi pull`: a run's folder, brought here."""

from spotmpi.cli.options import Json, On, RunId, RunsFolder, target


def command(run: RunId, on: On = None, runs: RunsFolder = None, json: Json = False) -> None:
    """Bring a run's model, checkpoints and records from the cluster's run volume to this machine."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.cli.view import say

    tables.show_folder(api.pull(run, target(on, runs), say), json)
