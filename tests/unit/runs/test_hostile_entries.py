"""Entries that no agent has written, in a pod's log or a run folder, do not crash their readers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import view
from spotmpi.cli import tables
from spotmpi.metrics import rates
from spotmpi.runs import pod_output, reader
from spotmpi.runs.folder import folder_events
from tests.unit.report.recorded_runs import SPEC, Recorded, record

NESTED: dict[str, Any] = {}
for _ in range(300):
    NESTED = {"a": NESTED}

METRIC = {"t": 5, "kind": "metric", "attempt": 1, "member": "node/0"}
ENTRIES: dict[str, Any] = {
    "no object": 5,
    "a number in words": {"n": "x", "s": {}},
    "nothing": {"n": 1},
    "a line of too few": {"n": 1, "l": [1, 0]},
    "a line that is an object": {"n": 1, "l": {"text": 1}},
    "a text that is a number": {"n": 1, "l": [1, "node/0", 1, 5.0, None, "o", 5]},
    "a rank in words": {"n": 1, "l": [1, "node/0", 1, 5.0, "x", "o", "t"]},
    "a time in words": {"n": 1, "l": [1, "node/0", 1, "x", None, "o", "t"]},
    "a time that no date has": {"n": 1, "l": [1, "node/0", 1, 1e300, None, "o", "t"]},
    "an attempt of 10**400": {"n": 1, "l": [10**400, "node/0", 1, 5.0, None, "o", "t"]},
    "a number of 10**400": {"n": 10**400, "l": [1, "node/0", 1, 5.0, None, "o", "t"]},
    "an event without a time": {"n": 1, "e": {"event": "failed"}},
    "an event that is a list": {"n": 1, "e": [1]},
    "an event of no kind": {"n": 1, "e": {"t": 5, "event": ["failed"]}},
    "an event that is a line": {"n": 1, "e": {"t": 5, "event": "line"}},
    "an event that is a metric": {"n": 1, "e": {"t": 5, "event": "metric"}},
    "a line of number 10**400": {"n": 1, "l": [1, "node/0", 10**400, 5.0, None, "o", "t"]},
    "a metric without a place": {"n": 1, "m": {"t": 5, "kind": "metric"}},
    "a metric of other types": {"n": 1, "m": {**METRIC, "iteration": "x"}},
    "a line of two lines": {"n": 1, "l": [1, "node/0", 1, 5.0, None, "o", "one\ntwo"]},
    "a line of no stream": {"n": 1, "l": [1, "node/0", 1, 5.0, None, "o 1\n", "t"]},
    "a line that says that others are missing": {"n": 1, "l": [1, "node/0", 1, 5.0, None, "m", "999"]},
    "a rank below 0": {"n": 1, "l": [1, "node/0", 1, 5.0, -1, "o", "t"]},
    "a time that is not a number": {"n": 1, "l": [1, "node/0", 1, math.nan, None, "o", "t"]},
    "a file for each of many attempts": {"n": 1, "l": [10**9, "node/0", 1, 5.0, None, "o", "t"]},
    "a file for each of many nodes": {"n": 1, "m": {**METRIC, "member": "node/1000000000"}},
    "a member in another folder": {"n": 1, "l": [1, "../0", 1, 5.0, None, "o", "t"]},
    "a role that no run has": {"n": 1, "l": [1, "pod/0", 1, 5.0, None, "o", "t"]},
    "a member that is a number": {"n": 1, "l": [1, 0, 1, 5.0, None, "o", "t"]},
    "an attempt that is nested deeply": {"n": 1, "a": [1, 0, NESTED]},
    "a summary that is nested deeply": {"n": 1, "s": {"result": NESTED}},
    "an attempt that is a list": {"n": 1, "a": [1, 0, []]},
    "a summary that is a list": {"n": 1, "s": [1]},
    "a summary that ended in words": {"n": 1, "s": {"ended": "x"}},
}


@pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in ENTRIES.items()])
def test_output_that_no_agent_printed_is_no_entry(values: Any) -> None:
    line = json.dumps(values, separators=(",", ":"))
    good = '{"n":2,"l":[1,"node/0",1,5.0,null,"o","kept"]}'
    assert pod_output.parse(line) is None
    first, second = pod_output.parse_all(f"{line}\n{good}")
    assert first == line
    assert not isinstance(second, str) and second.event and second.event.values["text"] == "kept"


def test_a_line_between_others_is_checked_as_if_it_were_alone() -> None:
    """The smallest of several times is not NaN, unless that is the first one."""
    bad = json.dumps({"n": 2, "l": [1, "node/0", 2, math.nan, None, "o", "t"]}, separators=(",", ":"))
    good = [json.dumps({"n": n, "l": [1, "node/0", n, 5.0, None, "o", "t"]}, separators=(",", ":")) for n in (1, 3)]
    first, second, third = pod_output.parse_all("\n".join([good[0], bad, good[1]]))
    assert second == bad and not isinstance(first, str) and not isinstance(third, str)


def test_an_entry_that_is_nested_deeply_is_none() -> None:
    line = '{"n":1,"e":' + "[" * 100_000
    assert pod_output.parse(line) is None
    assert pod_output.parse_all(line) == [line]


@pytest.mark.parametrize("number", [10**400, -1, 1.5])
def test_an_entry_alone_has_a_number_that_can_be_counted_on(number: float) -> None:
    line = json.dumps({"n": number, "l": [1, "node/0", 1, 5.0, None, "o", "t"]}, separators=(",", ":"))
    assert pod_output.parse_all(line) == [line]


def test_lines_that_only_together_are_json_are_no_entries() -> None:
    lines = ['{"n":1},5', '{"n":1,"x":[1', '{"n":2}]}']
    assert pod_output.parse_all("\n".join(lines)) == lines


EVENTS: dict[str, dict[str, Any]] = {
    "counts in words": {"event": "restarted", "failures": "x", "interruptions": []},
    "no counts": {"event": "restarted"},
    "a reason that is an object": {"event": "failed", "reason": {"a": 1}},
    "an attempt in words": {"event": "started", "attempt": "x"},
    "a kind that is a list": {"event": ["failed"]},
    "no kind": {},
    "a line": {"event": "line"},
    "a metric": {"event": "metric", "iteration": []},
    "a time in words": {"event": "failed", "t": "x"},
    "a time that no date has": {"event": "submitted", "t": 1e300},
    "a negative time": {"event": "submitted", "t": -1e300},
}


@pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in EVENTS.items()])
def test_events_that_no_agent_wrote_do_not_end_a_follower(
    tmp_path: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = record(tmp_path, "run-1", SPEC, Recorded())
    with paths.events.open("a") as events:
        events.write(json.dumps({"t": 1_789_000_100, **values}) + "\n")
    with paths.metrics.open("a") as lines:
        lines.write(json.dumps({"t": 1_789_000_100, **values}) + "\n")
    state = reader.state(paths)
    tables.show_runs([state], as_json=False)
    tables.show_status(state, as_json=False)
    with view.PlainView() as plain:
        for event in folder_events(paths, follow=False, alive=lambda: False):
            plain.show(event)
    assert rates.read(reader.lines(paths.metrics)).rates
    assert reader.every(tmp_path)
