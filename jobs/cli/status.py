"""`spotmpi status`: what a run has come to so far."""

from jobs.cli.options import Json, On, RunId, RunsFolder, where


def command(run: RunId, on: On = None, runs: RunsFolder = None, json: Json = False) -> None:
    """Show a run's state, progress and attempts."""
    from jobs import api
    from jobs.cli import tables

    tables.show_status(api.status(run, where(on, runs)), json)
