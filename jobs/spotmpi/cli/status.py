"""`spotmpi status`: the state of a run."""

from spotmpi.cli.options import Json, RunId, TargetOptions


def command(run: RunId, where: TargetOptions = TargetOptions(), as_json: Json = False) -> None:
    """Show a run's state, progress and attempts."""
    from spotmpi.api import runs as api
    from spotmpi.cli import tables
    from spotmpi.core.wording import echo

    tables.show_status(api.status(run, where.target, echo), as_json)
