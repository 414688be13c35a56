"""The page of a model or data set as a report: metrics, curves of its run, what it was made from, files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tomli_w

from spotmpi.agent.files import is_file
from spotmpi.api import lineage
from spotmpi.api.lineage import Node
from spotmpi.core import names
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import counted, dollars, format_size, shortened
from spotmpi.entries.manifest import COMMANDS, SHORT, WORDS, Manifest
from spotmpi.entries.store import Store
from spotmpi.entries.versions import current
from spotmpi.metrics import rates
from spotmpi.metrics.rates import Point
from spotmpi.report.charts import time_chart
from spotmpi.report.figures import Item, Tree, number
from spotmpi.report.report import Report, Section
from spotmpi.runs import reader

_FILES, _CURVES = 100, 12  # that a page has
_KINDS = ("model", "data set", lineage.RUN, lineage.CODE, lineage.IMAGE, lineage.INPUT)  # the colours of a lineage
_NOTED = (
    "version",
    "rows",
    "bytes",
    "files",
    "created",
    "cost",
    "commit",
    "changes",
    "lock",
    "record",
    "state",
    "damage",
    lineage.SAME_FILES,
)


def entry_report(manifest: Manifest, store: Store, now: float) -> Report:
    """What is known of an entry, in the form that pages have; *now* in Unix seconds.

    Raises:
        SpotmpiError: a record that it was made from cannot be read.
    """
    title = manifest.title
    run = RunPaths(names.default_runs_folder() / manifest.run) if manifest.run else None
    series = rates.read(reader.lines(run.metrics)) if run and is_file(run.metrics) else None
    curves = {**series.series, **series.evaluations} if series else {}
    sections = [_metrics(manifest), _curves(curves), _lineage(lineage.entry_node(manifest, store)), _files(manifest)]
    commands = [f"{COMMANDS[manifest.kind]} show {title}", f"spotmpi why {manifest.kind}:{title}"]
    return Report(
        title=title,
        created=now,
        rows=[],
        conditions=list(_conditions(manifest, store)),
        method=[],
        warnings=[] if curves or not manifest.run else [f"the curves of run {manifest.run} are not on this machine"],
        commands=commands,
        spec=_spec(manifest.details.get("spec")),
        subfolder=title,
        sections=[section for section in sections if section.cells or section.charts],
        kind=WORDS[manifest.kind].capitalize(),
    )


def _spec(values: dict[str, Any] | None) -> str:
    """The spec of an entry's run as TOML, or as JSON where somebody else's has what TOML does not, such as null."""
    try:
        return tomli_w.dumps(values or {})
    except TypeError:
        return json.dumps(values, indent=1)


def _conditions(manifest: Manifest, store: Store) -> Iterator[tuple[str, str]]:
    aliases = current(store.versions(manifest.kind, manifest.name).aliases(), manifest.version)
    facts: dict[str, Any] = {
        "Aliases": ", ".join(aliases),
        "Key": manifest.key,
        "Created": lineage.moment(manifest.created),
        "Size": f"{format_size(manifest.bytes)} in {counted(len(manifest.files), 'file')}",
        "Rows": f"{manifest.rows:,}" if manifest.rows is not None else "",
        "Run": manifest.run,
        "Command": manifest.details.get("command"),
        "Checkpoint": manifest.details.get("checkpoint"),
        "Commit": manifest.code.commit if manifest.code else "",
        "Image": " ".join(map(shortened, (manifest.image or {}).values())),
        "Cost": dollars(manifest.cost) if manifest.cost is not None else "",
        "spotmpi": manifest.spotmpi,
    }
    return ((name, str(value)) for name, value in facts.items() if value)


def _metrics(manifest: Manifest) -> Section:
    values = manifest.details.get("metrics") or {}
    cells = [(name, number(value) if isinstance(value, float) else str(value)) for name, value in values.items()]
    numeric = 2 if any(isinstance(value, str) for value in values.values()) else 1
    return Section("Metrics", (), ("Metric", "Value"), tuple(cells), numeric)


def _curves(curves: dict[str, list[Point]]) -> Section:
    drawn = [(name, points) for name, points in curves.items() if len(points) > 1]
    charts = tuple(time_chart(name, [(name, points)]) for name, points in drawn[:_CURVES])
    more = ", ".join(name for name, _ in drawn[_CURVES:])
    return Section(
        "Curves", (f"The first {_CURVES} of {len(drawn)} metrics; not drawn: {more}.",) if more else (), charts=charts
    )


def _lineage(root: Node) -> Section:
    items = tuple(_items(root, 0, set()))
    kinds = dict.fromkeys(item.colour for item in items)
    legend = tuple((colour, _KINDS[colour]) for colour in sorted(kinds))
    return Section("Lineage", (), charts=(Tree("Lineage", "what it was made from", items, legend),))


def _items(node: Node, depth: int, seen: set[str]) -> Iterator[Item]:
    """A node and all that it was made from; what was made of the same twice is explained once."""
    noted = _NOTED if node.what != lineage.CODE else [each for each in _NOTED if each != "files"]  # its name has them
    notes = [lineage.fact(name, value) for name, value in node.facts.items() if name in noted]
    known = f"{node.what} {' '.join(map(shortened, node.name.split(' ')))}"
    again = lineage.REPEATED in node.facts or (node.parents and known in seen)
    kind = lineage.INPUT if node.what in (lineage.RAW, lineage.FILE) else node.what
    yield Item(known, "see above" if again else ", ".join(notes), depth, _KINDS.index(kind))
    seen.add(known)
    for each in () if again else node.parents:
        yield from _items(each, depth + 1, seen)


def _files(manifest: Manifest) -> Section:
    cells = [(file.path, f"{file.bytes:,}", file.sha256[:SHORT]) for file in manifest.files[:_FILES]]
    more = len(manifest.files) - len(cells)
    text = (f"The first {_FILES} of {counted(len(manifest.files), 'file')}.",) if more else ()
    return Section("Files", text, ("File", "Bytes", "SHA-256"), tuple(cells))
