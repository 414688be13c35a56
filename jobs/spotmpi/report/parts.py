"""The sections of a sweep's report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spotmpi.core.names import RunPaths
from spotmpi.forecast import published
from spotmpi.report import costs, effects, modelled, nodes, probes, published_comparison, time_breakdown, timeline
from spotmpi.report.fitted import series_of
from spotmpi.report.report import Report, label
from spotmpi.report.section import Section
from spotmpi.study.sweep import Sweep


def of_sweep(it: Sweep, report: Report, runs_folder: Path) -> list[Section]:
    """What *report*, which has its rows already, can show beside them."""
    design, series = it.design, series_of(report)
    lines = [(line, label(line, report.lines) or report.title) for line in report.lines]
    compared = (
        published_comparison.section(series, published.tables()[design.compare], report.conditions)
        if design.compare
        else None
    )
    runs = [(trial.number, RunPaths(runs_folder / run)) for trial in it.trials for run in trial.runs]
    found: Sequence[Section | None] = (
        costs.section(report.rows, lines, design.budget),
        time_breakdown.section(report.rows, report.silent),
        effects.section(report.rows, design.variants),
        modelled.section(series),
        compared,
        probes.section(report.probes),
        nodes.section(report.runs),
        timeline.section([each for trial, paths in runs for each in timeline.attempts(trial, paths)]),
    )
    return [section for section in found if section]
