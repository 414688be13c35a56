"""A report as Markdown, for a README or a pull request. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from spotmpi.core.printable import WHOLE, printable, printable_lines
from spotmpi.report.cells import table
from spotmpi.report.report import Report

_MARKUP = re.compile(r"[\\`*_<>\[\]~$]|&(?=#?\w+;)")
_START = re.compile(r"^(\s*\d{0,9})([#+.)=-])(?=[\s#=-]|$)")  # what makes a heading or a list of a text


def markdown(report: Report) -> str:
    """*report* as GitHub-flavoured Markdown."""
    made = table(report)
    moment = datetime.fromtimestamp(report.created, UTC)
    parts = [f"# {_text(report.title)}", f"Measured with spotmpi, reported {moment:%Y-%m-%d %H:%M} UTC."]
    parts += [f"> **Note:** {_text(warning)}" for warning in report.warnings]
    parts.append(_table(made.header, made.cells, made.numeric))
    parts += [_text(made.caption)] if made.caption else []
    if made.notes:
        parts.append("\n".join(f"- {letter}: {_text(note)}" for letter, note in made.notes))
    for section in report.sections:
        parts += [f"## {_text(section.title)}", *(_text(said) for said in section.said)]
        parts += [_table(section.header, section.cells, section.right)] if section.cells else []
        parts += ["\n".join(f"- {_text(fact)}" for fact in section.listed)] if section.listed else []
    if len(report.variants) > 1:
        parts += ["## Variants", _table(["Variant", "Changes"], [list(pair) for pair in report.variants])]
    parts += ["## Measured on", _table(["What", "Value"], [list(pair) for pair in report.conditions])]
    parts += ["## How it was measured", "\n\n".join(_text(said) for said in report.method)]
    parts += ["## Once more", _fenced("\n".join(report.commands), "sh")]
    parts += ["with the spec", _fenced(report.spec.strip(), "toml")] if report.spec.strip() else []
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    marks = ["---:" if right else "---" for right in numeric] or ["---"] * len(header)
    rows = [header, marks, *([_cell(text) for text in row] for row in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _text(text: str) -> str:
    """*text* as a paragraph or an item of a list, such that nothing in it is taken for markup."""
    return _START.sub(r"\1\\\2", _escaped(text))


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", printable(text, WHOLE))


def _fenced(text: str, language: str) -> str:
    text, fence = printable_lines(text), "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
