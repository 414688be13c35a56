"""A report as one HTML page that holds all it needs: no network, no scripts, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spotmpi.core.printable import printable_lines
from spotmpi.report import svg
from spotmpi.report.chart import Drawing, Strips
from spotmpi.report.charts import charts
from spotmpi.report.figures import number, share
from spotmpi.report.report import Report, label
from spotmpi.report.rows import Row, place
from spotmpi.report.table import quality_name, table
from spotmpi.report.trial_results import TrialResult

_TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Tile:
    """One number that a reader sees first."""

    name: str
    value: str
    unit: str
    where: str


def page(report: Report) -> str:
    """The page of *report*; everything in it is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    facts = dict(report.conditions)
    return environment.get_template(_TEMPLATE).render(
        report=report,
        kind="Bench report" if "Sweep" in facts else "Run report",
        moment=f"{datetime.fromtimestamp(report.created, UTC):%d %B %Y, %H:%M} UTC",
        machine=facts.get("Machine", ""),
        tiles=tiles(report),
        table=table(report),
        charts=[_drawn(chart) for chart in charts(report)],
        sections=[
            {**vars(each), "right": each.right, "charts": [_drawn(chart) for chart in each.charts]}
            for each in report.sections
        ],
        runs=[_run(run) for run in report.runs],
        tones=svg.TONES,
    )


def _shown(value: object) -> object:
    """*value* as the page has it: text without control characters; markup of our own, and what is no text, as it is."""
    from markupsafe import Markup

    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _drawn(chart: Drawing) -> dict[str, object]:
    from markupsafe import Markup

    if isinstance(chart, Strips):
        drawn, legend = svg.strips_svg(chart), svg.strips_legend(chart)
    else:
        drawn, legend = svg.svg(chart), svg.legend(chart.curves)
    return {
        "title": chart.title,
        "subtitle": chart.subtitle,
        # The markup is our own; the labels in it were escaped where they were put in.
        "svg": Markup(drawn),
        "legend": [(Markup(swatch), name) for swatch, name in legend],
    }


def tiles(report: Report) -> list[Tile]:
    """What matters most: the fastest row, how well it scales, and how good its model is."""
    rated = [row for row in report.rows if row.iterations_per_second is not None]
    if not rated:
        return []
    best = max(rated, key=lambda row: (row.samples_per_second or 0.0, row.iterations_per_second or 0.0))
    where = _where(best, report)
    found = [Tile("Fastest", number(best.iterations_per_second), "iterations/s", where)]
    if best.samples_per_second is not None:
        found.append(Tile("Throughput", number(best.samples_per_second), "samples/s", where))
    alike = [row for row in rated if row.line == best.line and row.efficiency is not None]
    widest = max(alike, key=lambda row: row.ranks, default=None)
    if widest and not widest.is_base:
        found.append(
            Tile("Scaling efficiency", share(widest.efficiency), "", f"{_where(widest, report)}, against {widest.base}")
        )
    if best.quality:
        found.append(Tile(quality_name(report), number(best.quality[1]), "", where))
    elif best.loss is not None:
        found.append(Tile("Final loss", number(best.loss), "", where))
    return found


def _where(row: Row, report: Report) -> str:
    name = label(row.line, report.lines)
    return f"{name}, {place(row.nodes, row.slots)}" if name else place(row.nodes, row.slots)


def _run(run: TrialResult) -> dict[str, object]:
    rates = run.training.rates
    left_out = [f"{count} {why}" for why, count in rates.left_out.items() if count] if rates else []
    return {
        "id": run.run,
        "state": run.state,
        "ranks": run.ranks,
        "rate": number(rates.per_second if rates else None),
        "median": number(1 / rates.median if rates and rates.median else None),
        "iqr": share(rates.iqr if rates else None),
        "counted": rates.iterations if rates else 0,
        "left_out": ", ".join(left_out) or "0",
    }
