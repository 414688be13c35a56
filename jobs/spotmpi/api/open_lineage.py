"""Lineage as events of OpenLineage 2-0-2, for catalogues: a START and a COMPLETE for each run and entry of a tree."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from spotmpi import __version__
from spotmpi.agent.files import error_text
from spotmpi.api.lineage import CODE, FILE, FOLDER, INPUT, LOCATIONS, RUN, Node, folder_of
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import absolute
from spotmpi.core.wording import option

_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
_PRODUCER = f"urn:spotmpi:{__version__}"
_NAMESPACE = "spotmpi"
_TIMEOUT = 30.0  # seconds


def events(tree: Node) -> list[dict[str, Any]]:
    """The events of all that a tree has, the oldest first, each once."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in reversed([*tree.walk()]):
        run = next((each for each in node.parents if _is_recorded(each)), None)
        is_entry = "key" in node.facts and "created" in node.facts  # else no manifest tells, or it is above
        if is_entry and run:  # its output, made also from what was named when it was kept
            for event in found[_run_id(run)]:
                _extend(event["inputs"], [each for parent in node.parents for each in _inputs(parent)])
                _extend(event["outputs"], [_dataset(node)])
        elif is_entry or _is_recorded(node):
            made = _events(node)
            found.setdefault(made[0]["run"]["runId"], made)
    if tree.what in (FILE, FOLDER) and tree.parents[0].what == RUN:  # what no entry has
        for event in found[_run_id(tree.parents[0])]:
            event["outputs"].append(_dataset(tree))
    return [event for each in sorted(found.values(), key=_time) for event in each]


def send(tree: Node, target: str) -> int:
    """Write the events of a tree to a file, as JSON Lines, or post them one by one to a URL; how many they are.

    Raises:
        SpotmpiError: the file cannot be written, or the server refuses.
        InputError: *target* is neither.
    """
    made = events(tree)
    if "://" not in target:
        if not target or target.endswith("/"):
            raise input_error(option("openlineage"), target, "give a file or a URL")
        try:
            absolute(target).write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")
        except OSError as error:
            raise SpotmpiError(f"{target} cannot be written: {error.strerror}; choose another file") from error
        return len(made)
    for each in made:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(target, json.dumps(each).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                pass
        except (OSError, ValueError) as error:
            cause = error_text(error.reason if type(error) is urllib.error.URLError else error)
            raise SpotmpiError(f"{target} does not take the events: {cause}; check the URL of the catalogue") from error
    return len(made)


def _time(made: list[dict[str, Any]]) -> str:
    return str(made[0]["eventTime"])


def _extend(datasets: list[dict[str, Any]], more: Iterable[dict[str, Any]]) -> None:
    datasets += [each for each in more if each not in datasets]


def _is_recorded(node: Node) -> bool:
    """Whether a node is a run whose record tells what it was made from."""
    return node.what == RUN and bool(node.parents)


def _events(node: Node) -> list[dict[str, Any]]:
    code = next((each.name for each in node.parents if each.what == CODE), node.name)
    job = {"namespace": _NAMESPACE, "name": node.facts.get("command") or code}
    inputs = [source for each in node.parents for source in _inputs(each)]
    outputs = [_dataset(node)] if "key" in node.facts else []
    time = node.facts.get("created") or datetime.fromtimestamp(0, UTC).isoformat()
    return [
        {
            "eventType": kind,
            "eventTime": time,
            "run": {"runId": _run_id(node)},
            "job": job,
            "inputs": list(inputs),
            "outputs": list(outputs),
            "producer": _PRODUCER,
            "schemaURL": _SCHEMA,
        }
        for kind in ("START", "COMPLETE")
    ]


def _inputs(node: Node) -> list[dict[str, Any]]:
    if "key" in node.facts:
        return [_dataset(node)]
    if node.what == INPUT:
        return [_dataset(each) for each in node.parents if "key" in each.facts] or [_raw(node)]
    return []


def _raw(node: Node) -> dict[str, Any]:
    """The files of a source: as one data set with the name of their folder, and those that were read as its subset.

    Names with a pattern would be another data set for each pattern, and no other job writes to them.
    """
    locations = node.facts.get(LOCATIONS, [])
    place = node.name.partition(" = ")[2] or node.name
    if not locations or locations == [place]:
        return _named(place, node.facts)
    schema = f"{_FACETS}/1-0-0/BaseSubsetDatasetFacet.json#/$defs/InputSubsetInputDatasetFacet"
    condition = {"type": "location", "locations": locations}
    facet = {"_producer": _PRODUCER, "_schemaURL": schema, "inputCondition": condition}
    return {**_named(folder_of(place, locations), node.facts), "inputFacets": {"subset": facet}}


def _dataset(node: Node) -> dict[str, Any]:
    """An entry by its name, a file by its place; each with its version."""
    return _named(node.name.partition("@")[0] if "key" in node.facts else node.name, node.facts)


def _named(place: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The data set of a place, named as the specification names those of its storage, with its version."""
    if "key" in facts:
        namespace, name = _NAMESPACE, place
    elif "://" in place:
        scheme, _, path = place.partition("://")
        authority, _, path = path.partition("/")
        namespace, name = f"{scheme}://{authority}", path or "/"
    else:
        namespace, name = "file", place
    version = next((facts[each] for each in ("key", "sha256", "digest", "content") if each in facts), None)
    schema = f"{_FACETS}/1-0-0/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
    facet = {"_producer": _PRODUCER, "_schemaURL": schema, "datasetVersion": version}
    return {"namespace": namespace, "name": name, "facets": {"version": facet} if version else {}}


def _run_id(node: Node) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"spotmpi {node.what} {node.name} {node.facts.get('key', '')}"))
