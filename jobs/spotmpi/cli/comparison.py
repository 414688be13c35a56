"""Two sweeps beside each other on stdout, and whether CI is to fail."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from spotmpi.api import studies as api
from spotmpi.backends.targets import Target
from spotmpi.cli.view import say
from spotmpi.core.errors import EXIT_FAILURE
from spotmpi.report.comparison import Comparison, named
from spotmpi.report.figures import number
from spotmpi.report.section import bounded, factor

_HEADER = ("ROW", "BEFORE", "AFTER", "CHANGE", "BOUNDS", "")


def show(before: str, after: str, limit: float | None, runs: Path | None, force: bool, as_json: bool) -> None:
    """Print what changed and whether it is more than noise; exit 1 where a row fell below *limit*."""
    made = api.compare(before, after, Target(runs_folder=runs), force)
    if as_json:
        print(json.dumps(made.to_json()))
    else:
        _table(made)
    failed = made.below(limit) if limit is not None else []
    for change in failed:
        say(f"{named(change.before)}: {factor(change.ratio)} is below --fail-below {limit:g}")
    raise typer.Exit(EXIT_FAILURE if failed else 0)


def _table(made: Comparison) -> None:
    for difference in made.unlike:
        print(f"warning: different work: {difference}")
    rows = [_HEADER]
    for change in made.changes:
        rates = (number(change.before.iterations_per_second), number(change.after.iterations_per_second))
        rows.append((named(change.before), *rates, factor(change.ratio), bounded(change.bounds), change.verdict))
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADER))]
    for row in rows:
        aligned = [row[0].ljust(widths[0]), *(cell.rjust(widths[at]) for at, cell in enumerate(row[1:-1], 1)), row[-1]]
        print("  ".join(aligned).rstrip())
    kinds = dict.fromkeys(change.bounds.kind for change in made.changes if change.bounds)
    if kinds:
        print(f"Iterations/s. Bounds of the change: {'; '.join(kinds)}.")
    print("Changed: " + ("; ".join(made.changed) or "nothing that is recorded"))
    if made.alone:
        print(f"In one of the two only: {'; '.join(made.alone)}")
