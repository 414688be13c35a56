"""What an agent printed can be had again from the run folder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from jobs.backends import pod_output
from jobs.backends.pod_output import Entry
from jobs.pod import record, replay
from jobs.pod.lines import Line
from jobs.pod.pod_record import PodRecord

HOSTILE = [
    "",
    " ",
    "a  b ",
    "\t",
    "\u00e9 \u2028 \U0001f600",
    '{"n":1,"e":{}}',
    "x" * 5000,
    "ends in \\",
    "\x1b[31mred",
]


def parsed(text: str) -> list[Entry]:
    return [entry for line in text.splitlines() if (entry := pod_output.parse(line))]


def recorded(folder: Path) -> None:
    """Write one of everything, a second apart."""
    ticks = itertools.count(1000)
    written = PodRecord(str(folder), clock=lambda: next(ticks) + 0.123456789)
    assert written.take_attempt() == 1
    written.event(record.STARTED, attempt=1, failures=0, interruptions=0)
    for text in HOSTILE:
        written.line(1, 0, Line(None, "o", text))
    written.line(1, 0, Line(3, "e", "oh"))
    written.metric(1, 0, "metric", {"iteration": 20, "loss": 0.1 + 0.2})
    written.attempt(1, 0, {"attempt": 1, "ended": next(ticks) + 0.5})
    written.summary({"state": "succeeded", "ended": next(ticks) + 0.5})
    written.event(record.SUCCEEDED)
    written.close()


def test_every_printed_entry_is_in_the_folder_with_the_same_values_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    printed = parsed(capsys.readouterr().out)
    assert [entry.number for entry in printed] == list(range(1, len(HOSTILE) + 7))

    replay.main([str(tmp_path), "0", "0", "1e12"])

    found = parsed(capsys.readouterr().out)
    assert len(found) == len(printed)
    for was, now in zip(printed, found, strict=True):
        assert (was.attempt, was.summary) == (now.attempt, now.summary)
        if was.event and now.event:
            assert was.event.time == pytest.approx(now.event.time, abs=1e-6)
            assert was.event.to_json() | {"time": 0} == now.event.to_json() | {"time": 0}


def test_a_span_leaves_out_what_is_older_and_what_is_newer(tmp_path: Path) -> None:
    recorded(tmp_path)
    texts = [entry["l"][6] for entry in replay.entries(str(tmp_path), 0, 1001.5, 1004.5) if "l" in entry]
    assert texts == HOSTILE[1:4] or texts == HOSTILE[0:3]


def test_another_nodes_log_comes_without_node_0s_records(tmp_path: Path) -> None:
    recorded(tmp_path)
    written = PodRecord(str(tmp_path))
    written.line(1, 1, Line(None, "o", "from node 1"))
    written.close()
    found = replay.entries(str(tmp_path), 1, 0, 1e12)
    assert [(entry["l"][1], entry["l"][2], entry["l"][6]) for entry in found] == [(1, 1, "from node 1")]


def test_torn_and_missing_files_are_no_obstacle(tmp_path: Path) -> None:
    assert replay.entries(str(tmp_path / "none"), 0, 0, 1e12) == []
    (tmp_path / "events.jsonl").write_text('{"t": 1, "event": "started"}\n{"t": 2, "ev')
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    assert json.dumps(replay.entries(str(tmp_path), 0, 0, 5)) == '[{"e": {"t": 1, "event": "started"}}]'
