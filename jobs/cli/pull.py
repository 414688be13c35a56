"""`spotmpi pull`: a run's folder, brought here."""

from jobs.cli.options import Json, On, RunId, RunsFolder, where


def command(run: RunId, on: On = None, runs: RunsFolder = None, json: Json = False) -> None:
    """Bring a run's model, checkpoints and records from the cluster's run volume to this machine."""
    from jobs import api
    from jobs.cli import tables
    from jobs.cli.view import say

    tables.show_folder(api.pull(run, where(on, runs), say), json)
