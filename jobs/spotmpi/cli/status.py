"""`spotmpi status`: the state of a run."""

from spotmpi.cli.options import Json, On, RunId, RunsFolder, target


def command(run: RunId, on: On = None, runs: RunsFolder = None, as_json: Json = False) -> None:
    """Show a run's state, progress and attempts."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.core.wording import echo

    tables.show_status(api.status(run, target(on, runs), echo), as_json)
