"""The files of a report: page, Markdown, JSON, CSV and picture."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from spotmpi.core.errors import SpotmpiError
from spotmpi.report.markdown import markdown
from spotmpi.report.page import page
from spotmpi.report.picture import draw, pictured
from spotmpi.report.report import Report


@dataclass(frozen=True)
class Written:
    """Where a report was written; ``picture`` is None where there was nothing to draw."""

    page: Path
    markdown: Path
    data: Path
    csv: Path
    picture: Path | None


def write(report: Report, folder: Path) -> Written:
    """Write *report* into *folder*, which is made; each file is whole or, where something fails, as it was before.

    Raises:
        SpotmpiError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = folder / "report.png" if pictured(report) else None
        if drawn:
            aside = folder / ".report.png.part"
            draw(report, aside)
            aside.replace(drawn)
        return Written(
            page=_put(folder / "report.html", page(report)),
            markdown=_put(folder / "report.md", markdown(report)),
            data=_put(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n"),
            csv=_put(folder / "report.csv", _csv(report)),
            picture=drawn,
        )
    except OSError as error:
        raise SpotmpiError(f"cannot write the report into {folder}: {error.strerror}; use --out FOLDER") from error


def _csv(report: Report) -> str:
    """A line per row of the main table, with the plain values of its JSON form."""
    rows = [{key: value for key, value in row.items() if key != "runs"} for row in report.to_json()["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    for row in rows:
        inner = {key: json.dumps(value) for key, value in row.items() if isinstance(value, list | dict)}
        writer.writerow({**row, **inner})
    return text.getvalue()


def _put(path: Path, text: str) -> Path:
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text, encoding="utf-8", errors="replace")
    aside.replace(path)
    return path
