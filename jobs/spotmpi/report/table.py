"""The main table of a report as text, common to all output formats. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from spotmpi.report.figures import MISSING, number, share
from spotmpi.report.report import Report, batch, label
from spotmpi.report.rows import Row

_SHORT = {"Iterations/s": "It/s", "Efficiency": "Eff.", "Final loss": "Loss", "Test accuracy": "Accuracy"}
_TO = "\N{EN DASH}"


@dataclass(frozen=True)
class Table:
    """``cells`` has one list per row, as long as ``header``; columns that are ``numeric`` align right.

    ``short`` is a shorter header for narrow terminals. ``notes`` explain the letters in the last column, ``caption``
    the columns.
    """

    header: list[str]
    short: list[str]
    numeric: list[bool]
    cells: list[list[str]]
    notes: list[tuple[str, str]]
    caption: str


def table(report: Report) -> Table:
    """The table of *report*, without columns that would be empty."""
    flags = list(dict.fromkeys(flag for row in report.rows for flag in row.flags))
    letters = {flag: _letter(index) for index, flag in enumerate(flags)}
    columns = _columns(report, letters)
    return Table(
        header=[name for name, _, _ in columns],
        short=[_SHORT.get(name, name) for name, _, _ in columns],
        numeric=[numeric for _, numeric, _ in columns],
        cells=[[cell(row) for _, _, cell in columns] for row in report.rows],
        notes=[(letter, flag) for flag, letter in letters.items()],
        caption=_caption(report),
    )


def quality_name(report: Report) -> str:
    """The name of the quality metric of the model, as a heading."""
    names = [row.quality[0] for row in report.rows if row.quality]
    if not names:
        return ""
    known = {"accuracy": "Test accuracy", "map": "mAP", "mean_average_precision": "mAP"}
    return known.get(names[0], names[0].replace("_", " ").capitalize())


_Column = tuple[str, bool, Callable[[Row], str]]


def _columns(report: Report, letters: dict[str, str]) -> list[_Column]:
    rows, lines = report.rows, report.lines
    columns: list[_Column] = []
    if len(lines) > 1:
        columns.append(("Variant", False, lambda row: label(row.line, lines)))
    columns.append(("Nodes", True, lambda row: str(row.nodes)))
    if any(row.slots > 1 for row in rows):
        columns.append(("Slots", True, lambda row: str(row.slots)))
    columns += [
        ("Ranks", True, lambda row: str(row.ranks)),
        ("Trials", True, lambda row: str(len(row.runs))),
        ("Iterations/s", True, lambda row: number(row.iterations_per_second)),
        ("Spread", True, _spread),
        ("Samples/s", True, lambda row: number(row.samples_per_second)),
    ]
    if any(row.efficiency is not None for row in rows):
        columns.append(("Efficiency", True, _efficiency))
    columns.append(("Final loss", True, lambda row: number(row.loss)))
    if quality_name(report):
        columns.append((quality_name(report), True, lambda row: number(row.quality[1] if row.quality else None)))
    if any(row.interruptions + row.failures for row in rows):
        columns.append(("Restarts", True, lambda row: str(row.interruptions + row.failures)))
    if letters:
        columns.append(("Notes", False, lambda row: " ".join(letters[flag] for flag in row.flags)))
    return columns


def _spread(row: Row) -> str:
    if row.low is None or row.high is None:
        return MISSING if row.spread is None else f"IQR {share(row.spread)}"
    return f"{number(row.low)}{_TO}{number(row.high)}"


def _efficiency(row: Row) -> str:
    return "base" if row.is_base else share(row.efficiency)


def _caption(report: Report) -> str:
    text = []
    bounds = list(dict.fromkeys(row.bounds for row in report.rows if row.spread is not None))
    if bounds:
        text.append(f"Spread: {'; '.join(bounds)}.")
    text += _efficiency_bases(report)
    kinds = {(line.scaling, batch(line)) for line in report.lines}
    if len(kinds) == 1 and report.lines[0].scaling:
        scaling, batch_text = kinds.pop()
        text.append(f"{str(scaling).capitalize()} scaling: {batch_text}.")
    restarts = [f"{count} {what}" for what, count in _restarts(report.rows) if count]
    if restarts:
        text.append(f"Restarts: {' and '.join(restarts)}.")
    return " ".join(text)


def _efficiency_bases(report: Report) -> list[str]:
    """The bases of efficiencies, in one sentence if they are the same for all."""
    bases = {base for _, base in report.bases}
    if len(bases) == 1:
        of = " of the same variant" if len(report.lines) > 1 else ""
        return [f"Efficiency: samples/s per rank relative to {bases.pop()}{of}."]
    return [f"Efficiency of {name}: samples/s per rank relative to {base}." for name, base in report.bases]


def _restarts(rows: Sequence[Row]) -> list[tuple[str, int]]:
    interruptions, failures = sum(row.interruptions for row in rows), sum(row.failures for row in rows)
    return [(_plural("interruption", interruptions), interruptions), (_plural("failure", failures), failures)]


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _letter(index: int) -> str:
    return ascii_lowercase[index] if index < len(ascii_lowercase) else str(index)
