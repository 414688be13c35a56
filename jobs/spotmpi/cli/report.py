"""`spotmpi report`: results of recorded runs or of a sweep, and what changed between two sweeps."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from spotmpi.cli import completion
from spotmpi.cli.options import Json, RunsFolder, TargetOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from spotmpi.report.comparison import Comparison
    from spotmpi.report.report import Report

_UNLIMITED = 10_000  # columns
_FILE_WIDTH = 200  # a folded table in a file is hard to read


@dataclass(frozen=True)
class ComparisonOptions:
    """Options that compare two sweeps."""

    sweeps: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            help="Show what changed from sweep A to sweep B, and whether it exceeds noise.",
            metavar="A B",
        ),
    ] = None
    fail_below: Annotated[
        float | None,
        typer.Option(
            "--fail-below", help="With --compare: exit 1 if a rate fell below this share, such as 0.95, or is missing."
        ),
    ] = None


def command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="A sweep, or runs of the same work (default: the newest).",
            metavar="ID",
            autocompletion=completion.runs_and_sweeps,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page, picture, Markdown and JSON.", metavar="FOLDER"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Show runs of different work side by side, marked.")] = False,
    compare: ComparisonOptions = ComparisonOptions(),
    runs: RunsFolder = None,
    as_json: Json = False,
) -> None:
    """Print a table of iterations/s and efficiency, and write an HTML page, a picture, Markdown, JSON and CSV."""
    from spotmpi.api import studies
    from spotmpi.core.errors import input_error

    sweeps, limit = compare.sweeps, compare.fail_below
    if limit is not None and not (sweeps and 0 < limit <= 1):
        raise input_error("--fail-below", limit, "must be above 0 and at most 1, together with --compare A B")
    if sweeps and ids:
        raise input_error("--compare", " ".join(ids), "names both sweeps itself; omit other ids")
    target = TargetOptions(runs=runs).target
    if sweeps:
        _show_comparison(studies.compare(*sweeps, target, force), sweeps[1], limit, as_json)
    report = studies.make_report(ids or [], target, force)
    show_report(report, out or report.folder(target.folder), as_json)


def show_report(report: Report, folder: Path, as_json: bool) -> None:
    """Write the files of *report* into *folder*, and print it as tables or JSON."""
    from spotmpi.core import names
    from spotmpi.report import files

    written = files.write(report, folder)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        print_report(report)
        print(f"\nreport: {names.display_path(written.page.absolute())}")
    sys.stdout.flush()


def print_report(report: Report, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print the tables of *report* with notes and warnings, by default to stdout in its width."""
    from rich.console import Console

    from spotmpi.core.wording import printable
    from spotmpi.report.files import table

    main = table(report)
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    if width is None and not console.is_terminal:
        console.width = _FILE_WIDTH
    grid = _grid(main.header, main.numeric, main.cells, padding=1)
    if console.measure(grid, options=console.options.update_width(_UNLIMITED)).maximum > console.width:
        grid = _grid(main.short, main.numeric, main.short_cells, padding=0)
    console.print(grid)
    for line in [main.caption, *(f"{letter}: {note}" for letter, note in main.notes)]:
        if line:
            console.print(printable(line), soft_wrap=True)
    for section in report.sections:
        if section.cells:
            console.print(f"\n{printable(section.title)}", style="bold")
            console.print(_grid(section.header, section.right, section.cells, padding=1))
            for line in section.text:
                console.print(printable(line), soft_wrap=True)
    for warning in report.warnings:
        console.print(f"warning: {printable(warning)}", soft_wrap=True, style="yellow")


def _grid(header: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]], padding: int) -> Table:
    from rich import box
    from rich.table import Table

    from spotmpi.core.wording import printable

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, padding), header_style="bold")
    for name, numeric in zip(header, right, strict=True):
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for cells in rows:
        grid.add_row(*map(printable, cells))
    return grid


def _show_comparison(comparison: Comparison, later: str, limit: float | None, as_json: bool) -> None:
    """Print what changed, and exit: with 1 if a row fell below *limit*, or has no rate in the *later* sweep."""
    from spotmpi.core.errors import EXIT_FAILURE
    from spotmpi.core.wording import echo
    from spotmpi.report.comparison import row_name
    from spotmpi.report.figures import factor

    if as_json:
        print(json.dumps(comparison.to_json()))
    else:
        _print_comparison(comparison)
    failures = []
    if limit is not None:
        failures = [
            f"{row_name(each.before)}: {factor(each.ratio)} is below --fail-below {limit:g}"
            for each in comparison.below(limit)
        ]
        failures += [f"{row}: {later} has no rate (see `spotmpi report {later}`)" for row in comparison.missing]
    for failure in failures:
        echo(failure)
    raise typer.Exit(EXIT_FAILURE if failures else 0)


def _print_comparison(comparison: Comparison) -> None:
    """Print a line for each row that both sweeps have, and what else differs between them."""
    from spotmpi.cli.tables import show_table
    from spotmpi.report.comparison import row_name
    from spotmpi.report.figures import factor, interval, number

    for difference in comparison.different_work:
        print(f"warning: different work: {difference}")
    rows = []
    for change in comparison.changes:
        rates = (number(change.before.iterations_per_second), number(change.after.iterations_per_second))
        rows.append((row_name(change.before), *rates, factor(change.ratio), interval(change.bounds), change.verdict))
    show_table(("ROW", "BEFORE", "AFTER", "CHANGE", "BOUNDS", ""), rows, right=range(1, 5))
    kinds = dict.fromkeys(change.bounds.kind for change in comparison.changes if change.bounds)
    if kinds:
        alone = " Each is for one row; faster and slower hold for all rows together." * (len(rows) > 1)
        print(f"Iterations/s. Bounds of the change: {'; '.join(kinds)}.{alone}")
    print("Changed: " + ("; ".join(comparison.changed) or "nothing that is recorded"))
    if comparison.unmatched:
        print(f"In one of the two only: {'; '.join(comparison.unmatched)}")
