"""A report as one self-contained HTML page: no network, no scripts, light and dark."""

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
from spotmpi.report.rows import Row, layout
from spotmpi.report.table import quality_name, table
from spotmpi.report.trial_results import TrialResult

_TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Tile:
    """A key figure at the top of the page."""

    name: str
    value: str
    unit: str
    where: str


def page(report: Report) -> str:
    """The HTML page of *report*, with everything escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    facts = dict(report.conditions)
    return environment.get_template(_TEMPLATE).render(
        report=report,
        kind="Sweep report" if "Sweep" in facts else "Run report",
        moment=f"{datetime.fromtimestamp(report.created, UTC):%d %B %Y, %H:%M} UTC",
        machine=facts.get("Machine", ""),
        tiles=tiles(report),
        table=table(report),
        charts=[_rendered(chart) for chart in charts(report)],
        sections=[
            {**vars(each), "right": each.right, "charts": [_rendered(chart) for chart in each.charts]}
            for each in report.sections
        ],
        runs=[_run(run) for run in report.runs],
        tones=svg.TONES,
    )


def _printable(value: object) -> object:
    """Text without control characters; our own markup and other values unchanged."""
    from markupsafe import Markup

    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _rendered(chart: Drawing) -> dict[str, object]:
    from markupsafe import Markup

    if isinstance(chart, Strips):
        drawn, legend = svg.strips_svg(chart), svg.strips_legend(chart)
    else:
        drawn, legend = svg.svg(chart), svg.legend(chart.curves)
    return {
        "title": chart.title,
        "subtitle": chart.subtitle,
        # Our own markup, with escaped labels.
        "svg": Markup(drawn),
        "legend": [(Markup(swatch), name) for swatch, name in legend],
    }


def tiles(report: Report) -> list[Tile]:
    """The key figures: the fastest row, its scaling efficiency, and the quality of its model."""
    rated = [row for row in report.rows if row.iterations_per_second is not None]
    if not rated:
        return []
    best = max(rated, key=lambda row: (row.samples_per_second or 0.0, row.iterations_per_second or 0.0))
    where = _where(best, report)
    all_tiles = [Tile("Fastest", number(best.iterations_per_second), "iterations/s", where)]
    if best.samples_per_second is not None:
        all_tiles.append(Tile("Throughput", number(best.samples_per_second), "samples/s", where))
    same_line = [row for row in rated if row.line == best.line and row.efficiency is not None]
    widest = max(same_line, key=lambda row: row.ranks, default=None)
    if widest and not widest.is_base:
        all_tiles.append(
            Tile(
                "Scaling efficiency",
                share(widest.efficiency),
                "",
                f"{_where(widest, report)}, relative to {widest.base}",
            )
        )
    if best.quality:
        all_tiles.append(Tile(quality_name(report), number(best.quality[1]), "", where))
    elif best.loss is not None:
        all_tiles.append(Tile("Final loss", number(best.loss), "", where))
    return all_tiles


def _where(row: Row, report: Report) -> str:
    name = label(row.line, report.lines)
    return f"{name}, {layout(row.nodes, row.slots)}" if name else layout(row.nodes, row.slots)


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
