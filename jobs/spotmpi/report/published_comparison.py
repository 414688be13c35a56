"""A published table beside our rows: same axes, same definition, and what differs in the set-up next to it."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.forecast.published import Table, references
from spotmpi.forecast.series import Series
from spotmpi.report.chart import MEASURED, Chart, Curve
from spotmpi.report.figures import number, share
from spotmpi.report.section import Section

_HEADER = ("Variant", "Nodes", "Iterations/s", "Efficiency", "Source")
_OURS = "ours"


def section(series: Sequence[Series], table: Table, conditions: Sequence[tuple[str, str]]) -> Section:
    """*table* beside our *series*; *conditions* tell how ours was measured."""
    theirs = table.as_series()
    named = [(f"{_OURS}: {each.name}", each) for each in series] + [(each.name, each) for each in theirs]
    cells = tuple(
        (each.name, str(nodes), number(each.rate(nodes)), share(each.efficiency(nodes, each.rate(nodes))), source)
        for source, group in ((_OURS, series), (table.title, theirs))
        for each in group
        for nodes in each.nodes
    )
    said = (
        f"{table.title}: {table.source}. Efficiency of each row is against its own smallest node count.",
        "What is known elsewhere: " + "; ".join(f"{each.claim} ({each.source})" for each in references()) + ".",
    )
    warnings = tuple(f"Published, {said}" for each in theirs for said in each.warnings())
    differences = (*(f"Theirs: {fact}." for fact in table.setup), *_ours(series, table, conditions), *warnings)
    charts = (_chart(named, False), _chart(named, True))
    return Section("Beside published results", said, _HEADER, cells, 1, charts, differences)


def _ours(series: Sequence[Series], table: Table, conditions: Sequence[tuple[str, str]]) -> list[str]:
    shown = ("Program", "Machine", "GPUs", "Data", "Versions")
    found = [f"Ours: {name.lower()} {value}." for name, value in conditions if name in shown]
    for each in series:
        kind = "global batch" if each.strong else "batch per node"
        if each.batch != table.global_batch or not each.strong:
            found.append(
                f"Not the same work: {each.name} has {kind} {each.batch}, theirs global batch {table.global_batch}."
            )
    return found


def _chart(named: Sequence[tuple[str, Series]], efficiency: bool) -> Chart:
    curves, ticks = [], sorted({float(nodes) for _, each in named for nodes in each.nodes})
    for tone, (name, each) in enumerate(named):
        points = tuple(
            (float(nodes), each.efficiency(nodes, each.rate(nodes)) if efficiency else each.rate(nodes))
            for nodes in each.nodes
        )
        curves.append(Curve(name, MEASURED, tone, points))
    if efficiency:
        subtitle = "of each row against its smallest node count"
        return Chart("Efficiency, ours and theirs", subtitle, "nodes", "efficiency", tuple(curves), tuple(ticks), True)
    return Chart("Rates, ours and theirs", "iterations/s", "nodes", "iterations/s", tuple(curves), tuple(ticks))
