"""`spotmpi list`: the runs that are recorded here."""

from jobs.cli.options import Json, On, RunsFolder, where


def command(on: On = None, runs: RunsFolder = None, json: Json = False) -> None:
    """List runs, oldest first."""
    from jobs import api
    from jobs.cli import tables

    tables.show_runs(api.list_runs(where(on, runs)), json)
