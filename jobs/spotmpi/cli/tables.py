"""Tables on stdout, and the two that several commands print: runs, and one run's state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from spotmpi.agent import record
from spotmpi.core import names
from spotmpi.core.wording import printable
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState

_PROMOTIONS = 3  # that are shown, the newest ones


def show_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), empty: str | None = None
) -> None:
    """Print rows in columns under their titles, never cut or folded; the columns numbered in *right* align there.

    Those with the text *empty* in each row are left out. Control characters in a cell, which another user may have
    written, are escaped.
    """
    shown = [at for at in range(len(titles)) if not rows or any(row[at] != empty for row in rows)]
    right = [place for place, at in enumerate(shown) if at in right]
    cells = [[titles[at] for at in shown], *([printable(row[at]) for at in shown] for row in rows)]
    widths = [[_width(cell) for cell in row] for row in cells]
    columns = [max(column) for column in zip(*widths, strict=True)]
    for row, taken in zip(cells, widths, strict=True):
        spaces = [" " * (column - width) for column, width in zip(columns, taken, strict=True)]
        padded = [
            space + cell if number in right else cell + space
            for number, (cell, space) in enumerate(zip(row, spaces, strict=True))
        ]
        print("  ".join(padded).rstrip())


def _width(text: str) -> int:
    """The columns that *text* takes in a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def show_runs(states: Sequence[RunState], as_json: bool) -> None:
    """Print one row per run, or a JSON list."""
    if as_json:
        print(json.dumps([vars(state) for state in states]))
        return
    titles = ("ID", "STATE", "ATTEMPT", "ITERATION", "OWNER", "SUBMITTED", "REASON")
    show_table(titles, [_row(state) for state in states])


def _row(state: RunState) -> Sequence[str]:
    counts = (str(state.attempt), _iterations(state))
    return (state.id, state.state, *counts, state.owner or "", moment(state.submitted, "%H:%M:%S"), state.reason or "")


def show_status(state: RunState, as_json: bool) -> None:
    """Print the state of one run, a line per fact, or a JSON object."""
    if as_json:
        print(json.dumps(vars(state)))
        return
    from spotmpi.api.view import placement_text, promotion_text, workers_text

    facts = {
        "run": state.id,
        "state": state.state + (f": {state.reason}" if state.reason else ""),
        "submitted": moment(state.submitted, "%H:%M:%S"),
        "ended": moment(state.ended, "%H:%M:%S"),
        "attempts": f"{state.attempt} (failures: {state.failures}, interruptions: {state.interruptions})",
        "iteration": _iterations(state),
        "loss": state.scalars.get("loss"),
        "capacity": placement_text(state.placement) if state.placement else None,
        "workers": workers_text(state.workers),
        "standby": ", ".join(state.standby),
        "promoted": "; ".join(map(promotion_text, state.promotions[-_PROMOTIONS:])),
        "avoided": "; ".join(f"{machine}: {reason}" for machine, reason in state.avoided.items()),
        **_stream(state),
        "container": state.container,
        "folder": state.folder,
    }
    for name, value in facts.items():
        if value not in (None, ""):
            print(f"{name:<10} {printable(value)}")
    if state.over and state.state != record.SUCCEEDED and state.reason != reader.CLOSED:
        print(f"continue   {continue_command(state)}")


def continue_command(state: RunState) -> str:
    """The command that continues a run, with the runs folder that it needs from the current folder."""
    import shlex

    folder = Path(state.folder).parent
    runs = "" if folder == names.default_runs_folder() else f" --runs {shlex.quote(names.display_path(folder))}"
    return f"spotmpi run --resume {state.id}{runs}"


def _stream(state: RunState) -> dict[str, str | None]:
    """The figures of the run's stream, and what would help."""
    from spotmpi.api.view import stream_texts

    figures, *advice = stream_texts(state) or [""]
    source = state.stream["source"] if state.stream else None
    return {"stream": figures, "advice": " ".join(advice), "source": source}


def _iterations(state: RunState) -> str:
    if state.iteration is None:
        return ""
    return f"{state.iteration}/{state.total_iterations}" if state.total_iterations else str(state.iteration)


def moment(time: float | None, clock: str = "%H:%M") -> str:
    """The date and time of Unix seconds; empty for None."""
    return "" if time is None else f"{datetime.fromtimestamp(time):%Y-%m-%d {clock}}"
