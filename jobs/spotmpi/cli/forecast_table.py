"""Forecasts as tables on stdout."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from spotmpi.api import studies
from spotmpi.backends.targets import Target
from spotmpi.forecast.forecast import Forecast, Goal, Outlook
from spotmpi.report.figures import MISSING, number, share

_HEADER = ("NODES", "IT/S", "95 %", "EFF.", "MEASURED", "ERROR", "$/1000 IT", "HOURS", "$", "MODEL")


def show(
    measured: str | None, nodes: Sequence[int], fit: Sequence[int] | None, goal: Goal, target: Target, as_json: bool
) -> None:
    """Print a table for each series that was measured, with what to think of it."""
    forecasts = studies.predict(measured, nodes, fit, goal, target)
    if as_json:
        print(json.dumps([_json(forecast) for forecast in forecasts]))
        return
    for index, forecast in enumerate(forecasts):
        print("\n" * (index > 0) + forecast.model.series.name)
        _table(forecast.outlooks)
        for note in (*forecast.answers, *forecast.model.notes):
            print(note)
        for warning in forecast.model.series.warnings():
            print(f"warning: {warning}")


def _table(outlooks: Sequence[Outlook]) -> None:
    rows = [_HEADER, *(_cells(outlook) for outlook in outlooks)]
    kept = [at for at in range(len(_HEADER)) if any(row[at] != MISSING for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    for row in rows:
        cells = [row[at].ljust(widths[at]) if at == kept[-1] else row[at].rjust(widths[at]) for at in kept]
        print("  ".join(cells).rstrip())


def _cells(outlook: Outlook) -> tuple[str, ...]:
    made = outlook.prediction
    bounded = made.low is not None and made.high is not None
    return (
        str(made.nodes),
        number(made.rate),
        f"{number(made.low)} to {number(made.high)}" if bounded else MISSING,
        share(outlook.efficiency),
        number(made.measured),
        share(made.error),
        number(outlook.per_thousand),
        number(None if outlook.seconds is None else outlook.seconds / 3600),
        number(outlook.dollars),
        made.verdict,
    )


def _json(forecast: Forecast) -> dict[str, object]:
    model = forecast.model
    return {
        "series": model.series.name,
        "fitted_on": model.counts,
        "seconds": model.unknowns,
        "degrees_of_freedom": model.freedom,
        "predictions": [{**dataclasses.asdict(outlook.prediction), **_money(outlook)} for outlook in forecast.outlooks],
        "cheapest": forecast.cheapest,
        "last_paying": forecast.last_paying,
        "answers": forecast.answers,
        "notes": model.notes,
        "warnings": model.series.warnings(),
    }


def _money(outlook: Outlook) -> dict[str, float | None]:
    return {
        "efficiency": outlook.efficiency,
        "dollars_per_1000_iterations": outlook.per_thousand,
        "seconds": outlook.seconds,
        "dollars": outlook.dollars,
    }
