"""The streams of a report: who waits for whom, and what would help. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from spotmpi.report.chart import Bar, BarChart
from spotmpi.report.figures import counted, number, share
from spotmpi.report.report import Section
from spotmpi.report.rows import Row
from spotmpi.streams.figures import Figures, advice

_COLOURS = {5: "works", 4: "waits"}
_HEADER = ("Variant", "Nodes", "Workers", "Batches/s", "MB/s of a rank", "Ranks wait", "Workers wait", "Skipped")
_MEDIANS = ("batches_per_second", "mb_per_second", "ranks_wait", "workers_wait")

Price = Callable[[Row], float | None]  # dollars per hour of a worker


def section(rows: Sequence[Row], price: Price = lambda row: None) -> Section | None:
    """The figures of the streams of all rows that have one."""
    known = [(row, figures) for row in rows if (figures := _median([run.stream for run in row.runs]))]
    if not known:
        return None
    text = [
        "Ranks wait for batches, and workers for ranks: a worker works while it reads and prepares.",
        "Rates and shares are those since the first report of the last attempt, medians over the trials of a row.",
    ]
    sources = dict.fromkeys(run.stream.source for row in rows for run in row.runs if run.stream and run.stream.source)
    text += [f"Source list: {', '.join(sources)}."] if sources else []
    helpful = [(row, figures, line) for row, figures in known if (line := advice(figures, price(row)))]
    bullets = tuple(f"{_name(row, figures, known)}: {line}" for row, figures, line in helpful)
    cells = tuple(_cells(row, figures) for row, figures in known)
    return Section("Streams", tuple(text), _HEADER, cells, 1, (_chart(known),), bullets, in_picture=True)


def _median(runs: Sequence[Figures | None]) -> Figures | None:
    """The figures of the trials of a row as those of one run."""
    known = [figures for figures in runs if figures]
    if not known:
        return None
    medians = {key: statistics.median(getattr(figures, key) for figures in known) for key in _MEDIANS}
    return replace(known[-1], **medians, skipped=sum(figures.skipped for figures in known))


def _cells(row: Row, figures: Figures) -> tuple[str, ...]:
    rates = (number(figures.batches_per_second), number(figures.mb_per_second))
    shares = (share(figures.ranks_wait), share(figures.workers_wait))
    return (row.line.variant, str(row.nodes), str(figures.workers), *rates, *shares, str(figures.skipped))


def _chart(known: Sequence[tuple[Row, Figures]]) -> BarChart:
    bars = tuple(bar for row, figures in known for bar in _bars(_name(row, figures, known), figures))
    return BarChart("Streams", "who waits for whom", "share of time", bars, tuple(_COLOURS.items()), percent=True)


def _bars(name: str, figures: Figures) -> Iterator[Bar]:
    sides = (("rank", figures.ranks, figures.ranks_wait), ("worker", figures.workers, figures.workers_wait))
    for what, count, waiting in sides:
        shares = zip(_COLOURS, (1 - waiting, waiting), strict=True)
        yield Bar(f"{name}: {counted('', count, what)}", tuple((colour, size) for colour, size in shares if size > 0))


def _name(row: Row, figures: Figures, known: Sequence[tuple[Row, Figures]]) -> str:
    several = len({each.line.variant for each, _ in known}) > 1
    return counted(row.line.variant if several else "", row.nodes, "node")
