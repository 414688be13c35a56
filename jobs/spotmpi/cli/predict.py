"""`spotmpi predict`: what more nodes would bring, and what they would cost."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, RunsFolder, target


def command(
    measured: Annotated[
        str | None,
        typer.Argument(help="A sweep, or the name of a published table; the newest sweep by default.", metavar="ID"),
    ] = None,
    nodes: Annotated[
        str, typer.Option("--nodes", "-n", help="Node counts: 2,4,8 or, by doubling, 2..64.", metavar="N..M")
    ] = "1..16",
    fit: Annotated[
        str | None,
        typer.Option("--fit", help="Counts to fit to (default: the smaller half of those measured).", metavar="N,N"),
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="How many iterations to train.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Or how many epochs.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Find the cheapest count that is done in, say, 8h.", metavar="TIME")
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", help="Dollars per node and hour (default: --on's now, else the sweep's).")
    ] = None,
    worth: Annotated[
        float, typer.Option("--worth", help="A node pays while it brings this share of what one of the base brings.")
    ] = 0.5,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Predict iterations/s, time and money on other node counts from a sweep, with what the model misses by."""
    from spotmpi.cli import forecast_table
    from spotmpi.forecast.forecast import Goal, node_counts
    from spotmpi.spec.job import read_duration

    until = None if deadline is None else read_duration("--deadline", deadline)
    goal = Goal(iterations, epochs, until, price, worth)
    counts = node_counts(fit, "--fit") if fit else None
    forecast_table.show(measured, node_counts(nodes), counts, goal, target(on, runs), json)
