"""The forms of a report: its main table as text, and the files: HTML page, Markdown, JSON, CSV and picture."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spotmpi.agent.files import write_atomically
from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import WHOLE, counted, printable, printable_lines
from spotmpi.report.chart import picture, svg
from spotmpi.report.charts import charts, picture_charts
from spotmpi.report.figures import MISSING, Drawing, letters, number, share
from spotmpi.report.report import Report, batch, label
from spotmpi.report.rows import Row, layout
from spotmpi.report.trial_results import TrialResult

if TYPE_CHECKING:
    from jinja2 import Template


_SHORT = {"Iterations/s": "It/s", "Efficiency": "Eff.", "Final loss": "Loss", "Test accuracy": "Accuracy"}
_TO = "\N{EN DASH}"


@dataclass(frozen=True)
class Table:
    """``cells`` has one list per row, as long as ``header``; columns that are ``numeric`` align right.

    ``short`` and ``short_cells`` are for narrow terminals. ``notes`` explain the letters in the last column,
    ``caption`` the columns.
    """

    header: list[str]
    short: list[str]
    numeric: list[bool]
    cells: list[list[str]]
    short_cells: list[list[str]]
    notes: list[tuple[str, str]]
    caption: str


def table(report: Report) -> Table:
    """The table of *report*, without columns that would be empty."""
    flags = list(dict.fromkeys(flag for row in report.rows for flag in row.flags))
    names = {flag: letters(index) for index, flag in enumerate(flags)}
    columns = _columns(report, names)
    return Table(
        header=[name for name, _, _ in columns],
        short=[_SHORT.get(name, name) for name, _, _ in columns],
        numeric=[numeric for _, numeric, _ in columns],
        cells=[[cell(row) for _, _, cell in columns] for row in report.rows],
        short_cells=[[_SHORT_CELLS.get(cell, cell)(row) for _, _, cell in columns] for row in report.rows],
        notes=[(letter, flag) for flag, letter in names.items()],
        caption=_caption(report),
    )


def quality_name(name: str) -> str:
    """The name of a quality metric of a model, as a heading."""
    known = {"accuracy": "Test accuracy", "map": "mAP", "mean_average_precision": "mAP"}
    return known.get(name, name.replace("_", " ").capitalize())


_Column = tuple[str, bool, Callable[[Row], str]]


def _columns(report: Report, flags: dict[str, str]) -> list[_Column]:
    """The columns of the main table, without those that would be empty; *flags* have the letters of notes."""
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
    for name in dict.fromkeys(row.quality[0] for row in rows if row.quality):
        columns.append((quality_name(name), True, partial(_quality, name)))
    if any(row.interruptions + row.failures for row in rows):
        columns.append(("Restarts", True, lambda row: str(row.interruptions + row.failures)))
    if flags:
        columns.append(("Notes", False, lambda row: " ".join(flags[flag] for flag in row.flags)))
    return columns


def _quality(name: str, row: Row) -> str:
    return number(row.quality[1] if row.quality and row.quality[0] == name else None)


def _efficiency(row: Row) -> str:
    bounds = row.efficiency_bounds
    between = f" ({100 * bounds.low:.1f}{_TO}{100 * bounds.high:.1f})" if bounds else ""
    return f"{_short_efficiency(row)}{between}"


def _short_efficiency(row: Row) -> str:
    return "base" if row.is_base else share(row.efficiency)


_SHORT_CELLS: dict[Callable[[Row], str], Callable[[Row], str]] = {_efficiency: _short_efficiency}


def _spread(row: Row) -> str:
    if row.low is None or row.high is None:
        return MISSING if row.spread is None else f"IQR {share(row.spread)}"
    return f"{number(row.low)}{_TO}{number(row.high)}"


def _caption(report: Report) -> str:
    """What the numbers of the main table mean, in sentences."""
    text = []
    bounds = list(dict.fromkeys(row.bounds for row in report.rows if row.spread is not None))
    if bounds:
        text.append(f"Spread: {'; '.join(bounds)}.")
    text += _efficiency_bases(report)
    text += _scaling(report)
    if restarts := _restarts(report.rows):
        text.append(f"Restarts: {' and '.join(restarts)}.")
    return " ".join(text)


def _scaling(report: Report) -> list[str]:
    """The batches of each kind of scaling in a sentence, with their variants unless these have all the same.

    Where all rows of a kind have the same number of ranks nothing was scaled, and the sentence has the batches alone.
    """
    kinds: dict[str, dict[str, dict[str, None]]] = {}
    ranks: dict[str, set[int]] = {}
    for row in report.rows:
        if kind := row.line.scaling:
            kinds.setdefault(kind, {}).setdefault(batch(row.line), {})[row.line.variant] = None
            ranks.setdefault(kind, set()).add(row.ranks)
    variants = {line.variant for line in report.lines}
    sentences = {
        kind: "; ".join(
            text if variants == own.keys() else f"{text} ({', '.join(own)})" for text, own in batches.items()
        )
        for kind, batches in kinds.items()
    }
    return [
        f"{kind.capitalize()} scaling: {text}." if len(ranks[kind]) > 1 else f"{text[0].upper()}{text[1:]}."
        for kind, text in sentences.items()
    ]


def _efficiency_bases(report: Report) -> list[str]:
    """The bases of efficiencies, in one sentence if they are the same for all."""
    bases = {base for _, base in report.bases}
    if len(bases) == 1:
        of = " of the same variant" if len(report.lines) > 1 else ""
        return [f"Efficiency: samples/s per rank relative to {bases.pop()}{of}."]
    return [f"Efficiency of {name}: samples/s per rank relative to {base}." for name, base in report.bases]


def _restarts(rows: Sequence[Row]) -> list[str]:
    interruptions, failures = sum(row.interruptions for row in rows), sum(row.failures for row in rows)
    return [counted(each, what) for each, what in ((interruptions, "interruption"), (failures, "failure")) if each]


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
        image = None
        if drawn := picture_charts(report):
            image = folder / "report.png"
            aside = folder / ".report.png.part"
            aside.write_bytes(picture(drawn))
            aside.replace(image)
        return ReportFiles(
            page=_write_text(folder / "report.html", page(report)),
            markdown=_write_text(folder / "report.md", markdown(report)),
            data=_write_text(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n"),
            csv=_write_text(folder / "report.csv", _csv(report)),
            picture=image,
        )
    except FileExistsError:
        raise input_error(wording.option("out"), str(folder), "is a file: name a folder") from None
    except OSError as error:
        raise SpotmpiError(
            f"cannot write the report into {folder}: {error.strerror}; use {wording.option('out', 'FOLDER')}"
        ) from error


def write_page(report: Report, path: Path) -> None:
    """Write the page of *report* alone; SpotmpiError where it cannot be written."""
    try:
        _write_text(path, page(report))
    except OSError as error:
        raise SpotmpiError(f"cannot write the page {path}: {error.strerror}; name another file") from error


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
    rows = [header, marks, *([_escaped(text).replace("|", "\\|") for text in row] for row in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
        kind=report.kind or ("Sweep report" if "Sweep" in facts else "Run report"),
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
    return {"title": chart.title, "subtitle": chart.subtitle, "svg": Markup(svg(chart))}


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
        result.append(Card(quality_name(best.quality[0]), number(best.quality[1]), "", where))
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
        "excluded": ", ".join(excluded) or run.training.unrated or "0",
    }
