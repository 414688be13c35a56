"""The tables and the picture of a benchmark, from the summaries of its sides. Pure, but for the document."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.faults.records import Summary
from scripts.faults.schedule import KINDS, TURN
from spotmpi.report.figures import Bar, BarChart

_LETTERS = 300  # of the reason of a failure; JSON has it whole
_BEGIN, _END = "<!-- faults -->", "<!-- end of faults -->"
_HEADER = (
    "| side | recovery, median | p95 | in units of the first row | iterations repeated per fault "
    "| samples lost; doubled | final parameters as undisturbed | recovered |"
)


def tables(summaries: Sequence[Summary], titles: Mapping[str, str], context: str) -> str:
    """Both tables in Markdown, with the context between them and every failure below."""
    first = next((each.median for each in summaries if each.median is not None), None)
    rows = [_HEADER, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    rows += [f"| {' | '.join(_cells(each, titles[each.side], first))} |" for each in summaries]
    kinds = ["| median by fault | " + " | ".join(KINDS.values()) + " |", "| --- |" + " --- |" * len(KINDS)]
    for each in summaries:
        cells = [_seconds(each.medians.get(kind)) for kind in KINDS]
        kinds.append(f"| {titles[each.side]} | {' | '.join(cells)} |")
    failures = [f"- {titles[each.side]}: {_line(reason)}" for each in summaries for reason in each.failures]
    heading = ["", "What failed:", "", *failures] if failures else []
    return "\n".join([f"{context} {_fastest(summaries, titles)}".rstrip(), "", *rows, "", *kinds, *heading])


def _fastest(summaries: Sequence[Summary], titles: Mapping[str, str]) -> str:
    """Which side has the shortest median, whoever it is."""
    medians = {each.side: each.median for each in summaries if each.median is not None}
    if not medians:
        return ""
    side = min(medians, key=medians.__getitem__)
    return f"The shortest median is that of {titles[side]}, {medians[side]:.2f} s."


def _cells(summary: Summary, title: str, first: float | None) -> list[str]:
    ratio = "" if summary.median is None or not first else f"{summary.median / first:.1f}"
    repeated = "" if summary.repeated is None else f"{summary.repeated:.1f}"
    checked = summary.ended > 0
    return [
        title,
        _seconds(summary.median),
        _seconds(summary.p95),
        ratio,
        repeated,
        f"{summary.lost}; {summary.doubled}" if checked else "not known",
        f"{summary.equal} of {summary.ended}" if checked else "not known",
        f"{summary.recovered} of {summary.injected}",
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _line(reason: str) -> str:
    """The beginning of a reason as one line of a list, without what Markdown would take for its own."""
    text = " ".join(reason.split()).replace("|", "/").replace("<", "(").replace(">", ")")
    return textwrap.shorten(text, _LETTERS, placeholder=" ...")


def charts(summaries: Sequence[Summary], titles: Mapping[str, str], context: str) -> list[BarChart]:
    """The median recovery of each side, up to its 95th percentile, and that of each fault by side."""
    measured = [each for each in summaries if each.median is not None]
    bars = tuple(
        Bar(
            f"{titles[each.side]}: {each.median:.1f} s",
            value=each.median,
            bounds=(each.shortest or 0.0, each.p95 or 0.0),
            colour=0 if each.side.startswith("spotmpi") else 1,
        )
        for each in measured
        if each.median is not None
    )
    whole = BarChart(
        "From the last iteration to the next new one", context, "seconds: shortest, median, p95", bars, mark=0.0
    )
    return [whole]


def update(path: Path, text: str) -> None:
    """Put the tables between their marks in a document; ValueError if it has no marks."""
    content = path.read_text()
    begin, end = content.find(_BEGIN), content.find(_END)
    if begin < 0 or end < begin:
        raise ValueError(f"{path} has no {_BEGIN} ... {_END}; put both where the tables belong")
    path.write_text(f"{content[: begin + len(_BEGIN)]}\n{text}\n{content[end:]}")


def context(values: Mapping[str, Any]) -> str:
    """The sentence about when and where it was measured, and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    low, high = values["load"]
    text = f"Measured on {values['date']} on {values['cores']} cores, load {low:.1f} to {high:.1f}; "
    text += f"seed {values['seed']}, {values['faults']} faults per side in turns of {TURN}; "
    return text + f"a checkpoint every {values['every']} iterations of {values['pace']} s. {versions}."
