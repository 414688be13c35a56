"""The files of a report: HTML page, Markdown, JSON, CSV and picture."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spotmpi.agent.files import write_atomically
from spotmpi.core import hints
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.printable import WHOLE, printable, printable_lines
from spotmpi.report import drawing
from spotmpi.report.chart import Drawing
from spotmpi.report.charts import charts, picture_charts
from spotmpi.report.figures import number, share
from spotmpi.report.report import Report, label
from spotmpi.report.rows import Row, layout
from spotmpi.report.table import quality_name, table
from spotmpi.report.trial_results import TrialResult

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report; ``picture`` is None if there was nothing to draw."""

    page: Path
    markdown: Path
    data: Path
    csv: Path
    picture: Path | None


def write(report: Report, folder: Path) -> ReportFiles:
    """Write *report* into *folder*, which is created; a file is replaced whole or not at all.

    Raises:
        SpotmpiError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        picture = None
        if drawn := picture_charts(report):
            picture = folder / "report.png"
            aside = folder / ".report.png.part"
            aside.write_bytes(drawing.picture(drawn))
            aside.replace(picture)
        return ReportFiles(
            page=_write_text(folder / "report.html", page(report)),
            markdown=_write_text(folder / "report.md", markdown(report)),
            data=_write_text(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n"),
            csv=_write_text(folder / "report.csv", _csv(report)),
            picture=picture,
        )
    except OSError as error:
        raise SpotmpiError(
            f"cannot write the report into {folder}: {error.strerror}; use {hints.option('out', 'FOLDER')}"
        ) from error


def _csv(report: Report) -> str:
    """A line per row of the main table, with the values of its JSON form."""
    rows = [{key: value for key, value in row.items() if key != "runs"} for row in report.to_json()["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    for row in rows:
        inner = {key: json.dumps(value) for key, value in row.items() if isinstance(value, list | dict)}
        writer.writerow({**row, **inner})
    return text.getvalue()


def _write_text(path: Path, text: str) -> Path:
    write_atomically(path, text, errors="replace")
    return path


_MARKUP = re.compile(r"[\\`*_<>\[\]~$]|&(?=#?\w+;)")
_START = re.compile(r"^(\s*\d{0,9})([#+.)=-])(?=[\s#=-]|$)")  # the start of a heading or a list


def markdown(report: Report) -> str:
    """*report* as GitHub-flavoured Markdown."""
    main = table(report)
    moment = datetime.fromtimestamp(report.created, UTC)
    parts = [f"# {_text(report.title)}", f"Measured with spotmpi, reported {moment:%Y-%m-%d %H:%M} UTC."]
    parts += [f"> **Note:** {_text(warning)}" for warning in report.warnings]
    parts.append(_table(main.header, main.cells, main.numeric))
    parts += [_text(main.caption)] if main.caption else []
    if main.notes:
        parts.append("\n".join(f"- {letter}: {_text(note)}" for letter, note in main.notes))
    for section in report.sections:
        parts += [f"## {_text(section.title)}", *(_text(sentence) for sentence in section.text)]
        parts += [_table(section.header, section.cells, section.right)] if section.cells else []
        parts += ["\n".join(f"- {_text(fact)}" for fact in section.bullets)] if section.bullets else []
    if len(report.variants) > 1:
        parts += ["## Variants", _table(["Variant", "Changes"], [list(pair) for pair in report.variants])]
    parts += ["## Conditions", _table(["What", "Value"], [list(pair) for pair in report.conditions])]
    parts += ["## Method", "\n\n".join(_text(sentence) for sentence in report.method)]
    parts += ["## Reproduce", _fenced("\n".join(report.commands), "sh")]
    parts += ["Spec:", _fenced(report.spec.strip(), "toml")] if report.spec.strip() else []
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    marks = ["---:" if right else "---" for right in numeric] or ["---"] * len(header)
    rows = [header, marks, *([_cell(text) for text in row] for row in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _text(text: str) -> str:
    """*text* as a paragraph or list item, with all markup escaped."""
    return _START.sub(r"\1\\\2", _escaped(text))


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", printable(text, WHOLE))


def _fenced(text: str, language: str) -> str:
    text, fence = printable_lines(text), "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


@dataclass(frozen=True)
class Card:
    """A key figure at the top of the page."""

    name: str
    value: str
    unit: str
    where: str


def page(report: Report) -> str:
    """The HTML page of *report*, with everything escaped."""
    facts = dict(report.conditions)
    return _page_template().render(
        report=report,
        kind="Sweep report" if "Sweep" in facts else "Run report",
        moment=f"{datetime.fromtimestamp(report.created, UTC):%d %B %Y, %H:%M} UTC",
        machine=facts.get("Machine", ""),
        cards=cards(report),
        table=table(report),
        charts=[_render_chart(chart) for chart in charts(report)],
        sections=[
            {**vars(each), "right": each.right, "charts": [_render_chart(chart) for chart in each.charts]}
            for each in report.sections
        ],
        runs=[_run_values(run) for run in report.runs],
    )


@functools.cache
def _page_template() -> Template:
    """The template of the page, which takes longer to compile than to fill."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_printable_value,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _printable_value(value: object) -> object:
    """Text without control characters; our own markup and other values unchanged."""
    from markupsafe import Markup

    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _render_chart(chart: Drawing) -> dict[str, object]:
    from markupsafe import Markup

    # Our own markup, with escaped labels.
    return {"title": chart.title, "subtitle": chart.subtitle, "svg": Markup(drawing.svg(chart))}


def cards(report: Report) -> list[Card]:
    """The key figures: the fastest row, its scaling efficiency, and the quality of its model."""
    rated = [row for row in report.rows if row.iterations_per_second is not None]
    if not rated:
        return []
    best = max(rated, key=lambda row: (row.samples_per_second or 0.0, row.iterations_per_second or 0.0))
    where = _row_name(best, report)
    most = max(row.iterations_per_second or 0.0 for row in rated)
    # Under weak scaling more ranks make more samples of fewer iterations.
    name = "Fastest" if best.iterations_per_second == most else "At the highest throughput"
    result = [Card(name, number(best.iterations_per_second), "iterations/s", where)]
    if best.samples_per_second is not None:
        result.append(Card("Throughput", number(best.samples_per_second), "samples/s", where))
    same_line = [row for row in rated if row.line == best.line and row.efficiency is not None]
    widest = max(same_line, key=lambda row: row.ranks, default=None)
    if widest and not widest.is_base:
        result.append(
            Card(
                "Scaling efficiency",
                share(widest.efficiency),
                "",
                f"{_row_name(widest, report)}, relative to {widest.base}",
            )
        )
    if best.quality:
        result.append(Card(quality_name(report), number(best.quality[1]), "", where))
    elif best.loss is not None:
        result.append(Card("Final loss", number(best.loss), "", where))
    return result


def _row_name(row: Row, report: Report) -> str:
    name = label(row.line, report.lines)
    return f"{name}, {layout(row.nodes, row.slots)}" if name else layout(row.nodes, row.slots)


def _run_values(run: TrialResult) -> dict[str, object]:
    rates = run.training.rates
    excluded = [f"{count} {why}" for why, count in rates.excluded.items() if count] if rates else []
    return {
        "id": run.run,
        "state": run.state,
        "ranks": run.ranks,
        "rate": number(rates.per_second if rates else None),
        "median": number(1 / rates.median if rates and rates.median else None),
        "iqr": share(rates.iqr if rates else None),
        "counted": rates.iterations if rates else 0,
        "excluded": ", ".join(excluded) or "0",
    }
