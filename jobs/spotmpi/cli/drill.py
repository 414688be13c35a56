"""`spotmpi drill`: cause a fault on purpose and see what it costs."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, RunId, RunsFolder, target


def command(
    run: RunId,
    node: Annotated[int, typer.Option("--node", help="The node to strike.")] = 0,
    how: Annotated[str, typer.Option("--how", help="evict, delete or kill.")] = "evict",
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Strike a node of a training run and print what its recovery cost."""
    from spotmpi.api import runs as api
    from spotmpi.cli.event_output import print_recovery
    from spotmpi.cli.view import TurnsView

    view = TurnsView()
    view.say(f"waiting for the next iteration that the run reports; then {how} of node {node}")
    print_recovery(api.drill(run, node, how, target(on, runs), view.show), json)
