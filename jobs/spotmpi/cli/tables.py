"""Runs as tables on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from spotmpi.core import names
from spotmpi.core.printable import printable
from spotmpi.runs.reader import RunState


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under their titles; the last column is as wide as it likes.

    Control characters in a cell, which another user may have written, are shown and not sent to the terminal.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles) - 1)]
    for row in (titles, *rows):
        front = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(f"{front}  {row[-1]}".rstrip())


def show_runs(states: Sequence[RunState], as_json: bool) -> None:
    """Print one row per run, or a JSON list."""
    if as_json:
        print(json.dumps([vars(state) for state in states]))
        return
    titles = ("ID", "STATE", "ATTEMPT", "ITERATION", "OWNER", "SUBMITTED", "REASON")
    show_table(titles, [_row(state) for state in states])


def _row(state: RunState) -> Sequence[str]:
    counts = (str(state.attempt), _iterations(state))
    return (state.id, state.state, *counts, state.owner or "", _moment(state.submitted), state.reason or "")


def show_status(state: RunState, as_json: bool) -> None:
    """Print what one run has come to, a line per fact, or a JSON object."""
    if as_json:
        print(json.dumps(vars(state)))
        return
    facts = {
        "run": state.id,
        "state": state.state + (f": {state.reason}" if state.reason else ""),
        "submitted": _moment(state.submitted),
        "ended": _moment(state.ended),
        "attempts": f"{state.attempt} ({state.failures} failures, {state.interruptions} interruptions)",
        "iteration": _iterations(state),
        "loss": state.scalars.get("loss"),
        "container": state.container,
        "folder": state.folder,
    }
    for name, value in facts.items():
        if value not in (None, ""):
            print(f"{name:<10} {printable(value)}")
    if state.over and state.state != "succeeded":
        print(f"continue   spotmpi run --resume {state.id}")


def show_folder(folder: Path, as_json: bool) -> None:
    """Print a run's folder and how much it holds, or a JSON object."""
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if as_json:
        print(json.dumps({"run": folder.name, "folder": str(folder), "bytes": held}))
    else:
        print(f"{names.shown(folder)} ({held / 1e6:.1f} MB)")


def _iterations(state: RunState) -> str:
    if state.iteration is None:
        return ""
    return f"{state.iteration}/{state.total_iterations}" if state.total_iterations else str(state.iteration)


def _moment(time: float | None) -> str:
    return "" if time is None else f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
