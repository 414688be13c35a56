"""The lines of a report as what a model is fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spotmpi.forecast.series import Series
from spotmpi.report.report import Report, label
from spotmpi.report.rows import Line, Row
from spotmpi.report.trial_results import STRONG, WEAK, Measured


def series_of(report: Report) -> list[Series]:
    """One series for each line and number of slots that was measured at two or more node counts."""
    found = []
    for line in report.lines:
        own = [row for row in report.rows if row.line == line and row.iterations_per_second]
        for slots in dict.fromkeys(row.slots for row in own):
            rows = [row for row in own if row.slots == slots]
            if len(rows) > 1 and line.scaling in (STRONG, WEAK):
                several = len({row.slots for row in own}) > 1
                name = label(line, report.lines) or report.title
                found.append(_series(f"{name}, {slots} slots" if several else name, line, rows, report.silent))
    return found


def _series(name: str, line: Line, rows: Sequence[Row], silent: Mapping[tuple[str, int], Sequence[Measured]]) -> Series:
    first = rows[0].runs[0]
    strong = line.scaling == STRONG
    samples = first.training.context.get("samples")
    apart = {row.nodes: _rates(silent.get((line.variant, row.nodes), ())) for row in rows}
    return Series(
        name,
        {row.nodes: _rates(row.runs) for row in rows},
        strong=strong,
        serial=first.serial,
        silent={nodes: rates for nodes, rates in apart.items() if rates} or None,
        batch=line.batch if strong or line.batch is None else line.batch * rows[0].slots,
        samples=samples if isinstance(samples, int) else None,
    )


def _rates(runs: Iterable[Measured]) -> list[float]:
    return [rate for run in runs if (rate := run.iterations_per_second)]
