"""`spotmpi cost`: what a run or an environment has cost."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, RunsFolder, target


def command(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A run's id or its beginning, or a stack (default: the place of --on).", metavar="ID|STACK"
        ),
    ] = None,
    since: Annotated[str, typer.Option("--since", help="For an environment: how far back, at most 42d.")] = "7d",
    price: Annotated[
        float | None, typer.Option("--price", help="For a run: US dollars per node and hour, where AWS can't tell.")
    ] = None,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Show what a run's nodes cost while it held them, or an environment's nodes by run, user and team."""
    from spotmpi.cli import cost_table
    from spotmpi.spec.job import read_duration

    cost_table.show(cost_table.find(what, read_duration("--since", since), price, target(on, runs)), json)
