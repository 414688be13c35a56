"""`spotmpi predict`: rates, time and money on other node counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, TargetOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotmpi.forecast.forecast import Forecast, Goal, NodeForecast

_HEADER = ("NODES", "IT/S", "95 %", "EFF.", "MEASURED", "ERROR", "$/1000 IT", "HOURS", "$", "MODEL")


@dataclass(frozen=True)
class GoalOptions:
    """Options that say how much is to be trained, and what a node costs and has to add."""

    iterations: Annotated[int | None, typer.Option("--iterations", help="Iterations to train.")] = None
    epochs: Annotated[float | None, typer.Option("--epochs", help="Epochs to train, instead of iterations.")] = None
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="Find the cheapest count that finishes within, say, 8h.", metavar="TIME"),
    ] = None
    price: Annotated[
        float | None,
        typer.Option("--price", help="Dollars per node and hour (default: --on's price now, else the sweep's)."),
    ] = None
    min_efficiency: Annotated[
        float,
        typer.Option("--min-efficiency", help="A node pays if it adds at least this share of the base rate per node."),
    ] = 0.5

    @property
    def goal(self) -> Goal:
        """What they ask for; InputError for a wrong duration."""
        from spotmpi.forecast.forecast import Goal
        from spotmpi.spec.job import read_duration

        seconds = None if self.deadline is None else read_duration("--deadline", self.deadline)
        return Goal(self.iterations, self.epochs, seconds, self.price, self.min_efficiency)


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
    options: GoalOptions = GoalOptions(),
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Predict iterations/s, time and money on other node counts from a sweep, with the error of the model."""
    from spotmpi.api import studies
    from spotmpi.forecast.forecast import node_counts

    goal = options.goal
    counts = node_counts(fit, "--fit") if fit else None
    forecasts = studies.predict(measured, node_counts(nodes), counts, goal, where.target)
    if as_json:
        print(json.dumps([_json(forecast) for forecast in forecasts]))
    else:
        _print(forecasts)


def _print(forecasts: Sequence[Forecast]) -> None:
    """Print a table for each series, with answers, notes and warnings."""
    for index, forecast in enumerate(forecasts):
        print("\n" * (index > 0) + forecast.model.series.name)
        _print_table(forecast.by_nodes)
        for note in (*forecast.answers, *forecast.model.notes):
            print(note)
        for warning in forecast.model.series.warnings():
            print(f"warning: {warning}")


def _print_table(forecasts: Sequence[NodeForecast]) -> None:
    from spotmpi.cli.tables import show_table
    from spotmpi.report.figures import MISSING

    show_table(_HEADER, [_cells(each) for each in forecasts], right=range(len(_HEADER) - 1), empty=MISSING)


def _cells(forecast: NodeForecast) -> tuple[str, ...]:
    """The row of the table for one number of nodes, with time in hours."""
    from spotmpi.report.figures import MISSING, number, share

    prediction = forecast.prediction
    bounded = prediction.low is not None and prediction.high is not None
    return (
        str(prediction.nodes),
        number(prediction.rate),
        f"{number(prediction.low)} to {number(prediction.high)}" if bounded else MISSING,
        share(forecast.efficiency),
        number(prediction.measured),
        share(prediction.error),
        number(forecast.dollars_per_thousand),
        number(None if forecast.seconds is None else forecast.seconds / 3600),
        number(forecast.dollars),
        prediction.verdict,
    )


def _json(forecast: Forecast) -> dict[str, object]:
    """The forecast for ``--json``, with times in seconds."""
    import dataclasses

    model = forecast.model
    return {
        "series": model.series.name,
        "fitted_on": model.counts,
        "seconds": model.parameters,
        "degrees_of_freedom": model.degrees_of_freedom,
        "predictions": [{**dataclasses.asdict(each.prediction), **_money(each)} for each in forecast.by_nodes],
        "cheapest": forecast.cheapest,
        "last_paying": forecast.last_paying,
        "answers": forecast.answers,
        "notes": model.notes,
        "warnings": model.series.warnings(),
    }


def _money(forecast: NodeForecast) -> dict[str, float | None]:
    return {
        "efficiency": forecast.efficiency,
        "dollars_per_1000_iterations": forecast.dollars_per_thousand,
        "seconds": forecast.seconds,
        "dollars": forecast.dollars,
    }
