"""`spotmpi logs`: the output of a run."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, RunId, RunsFolder, target


def command(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    node: Annotated[int | None, typer.Option("--node", help="Only this node's lines.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only what is newer than this, such as 10m or 2h.", metavar="AGE")
    ] = None,
    grep: Annotated[str | None, typer.Option("--grep", help="Only lines that match this regular expression.")] = None,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Print a run's lines, from the first one on; --json prints every event."""
    from spotmpi.api import runs as api
    from spotmpi.cli import final_cost
    from spotmpi.cli.event_output import Filter, print_events

    wanted, here = Filter.of(node, grep, since), target(on, runs)
    print_events(api.logs(run, follow, here), wanted, json, live=follow)
    if follow:
        final_cost.tell(run, here)
