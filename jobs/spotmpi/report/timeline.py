"""When which trial ran, and what interrupted it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotmpi.agent import record
from spotmpi.core.names import RunPaths
from spotmpi.report.chart import TRACE, Chart, Curve
from spotmpi.report.section import Section
from spotmpi.runs import reader

_TONES = {"done": 2, "interrupted": 1, "failed": 3}
_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclass(frozen=True)
class Attempt:
    """One attempt of the run of a trial: from *start* to *end* (Unix seconds), how it ended and why."""

    trial: int
    number: int
    start: float
    end: float
    ending: str
    reason: str


def attempts(trial: int, paths: RunPaths) -> list[Attempt]:
    """The attempts of a run that has ended."""
    found: list[Attempt] = []
    start, number = None, 0
    for event in reader.lines(paths.events):
        kind = event.get("event")
        if kind == record.STARTED:
            start, number = event["t"], event.get("attempt", number + 1)
        elif start is not None and kind in (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL):
            ending = {record.INTERRUPTED: "interrupted", record.SUCCEEDED: "done"}.get(kind, "failed")
            found.append(Attempt(trial, number, start, event["t"], ending, str(event.get("reason") or "")))
            start = None
    return found


def section(found: Sequence[Attempt]) -> Section | None:
    """All attempts over time, and those that did not end well as a table."""
    if not found:
        return None
    cut = [each for each in found if each.ending != "done"]
    origin = min(each.start for each in found)
    cells = tuple(
        (str(each.trial), str(each.number), f"{each.end - origin:.0f} s", each.ending, each.reason) for each in cut
    )
    said = [f"{len(found)} attempts of {len({each.trial for each in found})} trials."]
    said += ["Times that a restart made anew are counted once, as the later attempt made them."] if cut else []
    header = ("Trial", "Attempt", "Ended after", "How", "Why") if cut else ()
    return Section("Attempts and reclaims", tuple(said), header, cells, 9, (_chart(found, origin),))


def _chart(found: Iterable[Attempt], origin: float) -> Chart:
    found = list(found)
    longest = max(each.end for each in found) - origin
    unit, size = next((unit, size) for unit, size in _UNITS if longest > 3 * size or size == 1.0)
    curves = tuple(
        Curve(
            each.ending,
            TRACE,
            _TONES[each.ending],
            (((each.start - origin) / size, float(each.trial)), ((each.end - origin) / size, float(each.trial))),
        )
        for each in found
    )
    return Chart("Attempts over time", "each line is an attempt", f"{unit} since the first start", "trial", curves)
