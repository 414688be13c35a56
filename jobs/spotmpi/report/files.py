"""The files of a report: page, Markdown, JSON, CSV and picture."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spotmpi.agent.files import write_atomically
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.printable import WHOLE, printable, printable_lines
from spotmpi.report.page import page
from spotmpi.report.picture import draw, picture_charts
from spotmpi.report.report import Report
from spotmpi.report.table import table


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
        picture = folder / "report.png" if picture_charts(report) else None
        if picture:
            aside = folder / ".report.png.part"
            draw(report, aside)
            aside.replace(picture)
        return ReportFiles(
            page=_write_text(folder / "report.html", page(report)),
            markdown=_write_text(folder / "report.md", markdown(report)),
            data=_write_text(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n"),
            csv=_write_text(folder / "report.csv", _csv(report)),
            picture=picture,
        )
    except OSError as error:
        raise SpotmpiError(f"cannot write the report into {folder}: {error.strerror}; use --out FOLDER") from error


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
