"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from spotmpi.core.printable import printable
from spotmpi.report.cells import Table as Cells
from spotmpi.report.cells import table
from spotmpi.report.report import Report

if TYPE_CHECKING:
    from rich.table import Table


_ENDLESS = 10_000


def show(report: Report, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print the tables of *report* with notes and warnings, by default to stdout and as wide as that is."""
    from rich.console import Console

    made = table(report)
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    if width is None and not console.is_terminal:
        # A file has no width to keep to, and a folded table is hard to read back.
        console.width = 200
    shown = _grid(made, made.header, roomy=True)
    if console.measure(shown, options=console.options.update_width(_ENDLESS)).maximum > console.width:
        shown = _grid(made, made.short, roomy=False)
    console.print(shown)
    for line in [made.caption, *(f"{letter}: {note}" for letter, note in made.notes)]:
        if line:
            console.print(printable(line), soft_wrap=True)
    for section in report.sections:
        if section.cells:
            console.print(f"\n{printable(section.title)}", style="bold")
            console.print(_table(section.header, section.right, section.cells, 1))
    for warning in report.warnings:
        console.print(f"warning: {printable(warning)}", soft_wrap=True, style="yellow")


def _grid(made: Cells, header: list[str], roomy: bool) -> Table:
    return _table(header, made.numeric, made.cells, 1 if roomy else 0)


def _table(header: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]], padding: int) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, padding), header_style="bold")
    for name, numeric in zip(header, right, strict=True):
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for cells in rows:
        shown.add_row(*map(printable, cells))
    return shown
