"""What an agent printed can be had again from the run folder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotmpi.agent import record, replay
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.schema import AttemptRecord
from spotmpi.runs import pod_output
from spotmpi.runs.pod_output import PodEntry

SUBMITTED = 1000.0  # Unix seconds
UNICODE = "\u00e9 \u2028 \U0001f600"
HOSTILE = ["", " ", "a  b ", "\t", UNICODE, '{"n":1,"e":{}}', "x" * 5000, "ends in \\", "\x1b[31mred"]
ATTEMPT: AttemptRecord = {"attempt": 1, "started": 1.0, "cause": "succeeded", "last_iteration": 20}


def all_entries(folder: Path, node: int = 0) -> list[dict[str, Any]]:
    """Everything that the folder holds of a node."""
    return replay.entries(str(folder), Member(NODE, node), 0, 1e12, SUBMITTED)


def parse_lines(text: str) -> list[PodEntry]:
    return [entry for line in text.splitlines() if (entry := pod_output.parse(line))]


def write_records(folder: Path) -> None:
    """Write one of everything, a second apart."""
    ticks = itertools.count(1000)
    pod_record = PodRecord(str(folder), clock=lambda: next(ticks) + 0.123456789)
    assert pod_record.claim_attempt() == 1
    pod_record.event(record.STARTED, attempt=1, failures=0, interruptions=0)
    for text in HOSTILE:
        pod_record.line(1, COORDINATOR, Line(None, "o", text))
    pod_record.line(1, COORDINATOR, Line(3, "e", "oh"))
    pod_record.metric(1, COORDINATOR, "metric", {"iteration": 20, "loss": 0.1 + 0.2})
    pod_record.attempt(1, 0, {**ATTEMPT, "ended": next(ticks) + 0.5})
    pod_record.summary({"state": "succeeded", "ended": next(ticks) + 0.5})
    pod_record.event(record.SUCCEEDED)
    pod_record.close()


def test_every_printed_entry_is_in_the_folder_with_values_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path)
    printed = parse_lines(capsys.readouterr().out)
    assert [entry.number for entry in printed] == list(range(1, len(HOSTILE) + 7))

    replay.main([str(tmp_path), "0", "0", "1e12", "0"])

    replayed = parse_lines(capsys.readouterr().out)
    assert len(replayed) == len(printed)
    for was, now in zip(printed, replayed, strict=True):
        assert (was.attempt, was.summary) == (now.attempt, now.summary)
        if was.event and now.event:
            assert was.event.time == pytest.approx(now.event.time, abs=1e-6)
            assert was.event.to_json() | {"time": 0} == now.event.to_json() | {"time": 0}


def test_a_span_leaves_out_what_is_older_and_what_is_newer(tmp_path: Path) -> None:
    write_records(tmp_path)
    texts = [
        entry["l"][6] for entry in replay.entries(str(tmp_path), COORDINATOR, 1001.5, 1004.5, SUBMITTED) if "l" in entry
    ]
    assert texts == HOSTILE[1:4] or texts == HOSTILE[0:3]


@pytest.mark.parametrize("ahead", [-600.0, 600.0], ids=["behind", "ahead"])
def test_nothing_of_an_earlier_submission_is_replayed_however_the_clock_of_node_0_is_set(
    tmp_path: Path, ahead: float
) -> None:
    """A follower of a resumed run would take its end for its own, and print its lines again."""
    for number, submitted in enumerate((SUBMITTED, SUBMITTED + 90), 1):
        clock = iter(range(int(submitted + ahead), 10_000)).__next__
        pod_record = PodRecord(str(tmp_path), clock=clock)
        assert record.first_attempt(str(tmp_path), repr(submitted)) == pod_record.claim_attempt() == number
        pod_record.event(record.STARTED, attempt=number)
        pod_record.line(number, COORDINATOR, Line(None, "o", f"line of {number}"))
        pod_record.metric(number, COORDINATOR, "metric", {"iteration": number})
        pod_record.attempt(number, 0, {**ATTEMPT, "attempt": number, "ended": float(clock())})
        if number == 1:
            pod_record.summary({"state": "failed", "started": submitted, "ended": float(clock())})
            pod_record.event(record.FAILED, reason="no space", submission=submitted)
        pod_record.close()

    found = replay.entries(str(tmp_path), COORDINATOR, 0.0, 1e12, SUBMITTED + 90)

    assert [next(key for key in entry if key != "n") for entry in found] == ["e", "l", "m", "a"]
    assert found[0]["e"]["attempt"] == found[1]["l"][0] == found[2]["m"]["iteration"] == found[3]["a"][0] == 2


def test_another_nodes_log_comes_without_node_0s_records(tmp_path: Path) -> None:
    write_records(tmp_path)
    record = PodRecord(str(tmp_path))
    record.line(1, Member(NODE, 1), Line(None, "o", "from node 1"))
    record.close()
    (replayed,) = all_entries(tmp_path, node=1)
    assert (replayed["l"][1], replayed["l"][2], replayed["l"][6]) == ("node/1", 1, "from node 1")


def test_partial_and_missing_files_are_no_obstacle(tmp_path: Path) -> None:
    assert all_entries(tmp_path / "none") == []
    (tmp_path / "events.jsonl").write_text('{"t": 1, "event": "started"}\n{"t": 2, "ev')
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    assert (
        json.dumps(replay.entries(str(tmp_path), COORDINATOR, 0, 5, SUBMITTED))
        == '[{"e": {"t": 1, "event": "started"}}]'
    )


STAMP = "2026-11-21T07:52:0{}.000000Z"


def log_of(folder: Path, *lines: str, attempt: int = 1) -> None:
    place = folder / "logs" / str(attempt)
    place.mkdir(parents=True)
    (place / "node-0.log").write_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def texts_of(folder: Path) -> list[tuple[int, int, str]]:
    """Attempt, number and text of every line that the folder holds of node 0."""
    return [(line[0], line[2], line[6]) for entry in all_entries(folder) if (line := entry.get("l"))]


def line(number: int, text: str) -> str:
    return f"{STAMP.format(number)} - o {text}\n"


BYTES = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
WRITTEN = st.integers(0, 40).map(lambda size: b"2026-11-21T07:52:01.000000Z - o x"[:size])


@settings(max_examples=60)
@given(BYTES | st.tuples(WRITTEN, BYTES).map(b"".join), st.integers(0, 2))
@example(b"0001-01-01T00:00:00.000000+23:59 - o x", 1)
@example(b"2026-11-21T07:52:01.000000Z " + b"9" * 5000 + b" o y", 1)
def test_a_partial_line_of_a_log_hides_no_other(partial: bytes, at: int) -> None:
    lines = [line(1, "first"), line(2, "second")]
    lines.insert(at, partial.decode("utf-8", "surrogateescape") + "\n")
    with TemporaryDirectory() as folder:
        log_of(Path(folder), *lines)
        found = [number for _, number, text in texts_of(Path(folder)) if text in ("first", "second")]
    assert found == [number for number in (1, 2, 3) if number != at + 1]


def test_a_partial_last_line_without_its_end_is_left_to_its_writer_and_hides_no_other_attempt(tmp_path: Path) -> None:
    log_of(tmp_path, line(1, "a"), "2026-11-21T07:5")
    log_of(tmp_path, line(2, "b"), line(3, "half a li").rstrip("\n"), attempt=2)
    assert texts_of(tmp_path) == [(1, 1, "a"), (2, 1, "b")]


def test_a_partial_line_between_others_is_text_at_the_time_of_the_line_before(tmp_path: Path) -> None:
    log_of(tmp_path, line(1, "a"), "2026-11-21T07\n", line(3, "c"))
    replayed = [entry["l"] for entry in all_entries(tmp_path)]
    assert replayed[1][2:] == [2, replayed[0][3], None, "o", "2026-11-21T07"]


@pytest.mark.parametrize("name", ["tmp", "1.part", "\u00b2", ".nfs000001"])
def test_a_foreign_name_among_attempts_is_no_obstacle(tmp_path: Path, name: str) -> None:
    log_of(tmp_path, line(1, "a"))
    for folder in ("logs", "attempts"):
        (tmp_path / folder / name).mkdir(parents=True)
    assert texts_of(tmp_path) == [(1, 1, "a")]


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
# Objects without a time, as far as JSON goes: nothing tells where they belong.
JSON = st.dictionaries(st.sampled_from(["e", "x"]), VALUES).map(json.dumps).map(str.encode) | st.builds(
    lambda value: json.dumps({"t": value}).encode(), st.none() | st.text(max_size=3) | st.just(float("nan"))
)


@settings(max_examples=60)
@given(BYTES | JSON)
@example(b"[" * 100_000)
@example(b'{"t": ' + b"9" * 5000 + b"}")
def test_a_partial_line_of_events_metrics_or_a_record_hides_no_other(partial: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        log_of(folder, line(1, "a"))
        for file in ("events.jsonl", "metrics.jsonl"):
            (folder / file).write_bytes(b'{"t": 1, "x": 1}\n' + partial + b'\n{"t": 3, "x": 2}\n' + partial)
        (folder / "attempts" / "1").mkdir(parents=True)
        for file in ("attempts/1/node-0.json", "summary.json"):
            (folder / file).write_bytes(partial)
        replayed = all_entries(folder)
        assert [entry for entry in replayed if "l" not in entry] == [
            {kind: {"t": at, "x": value}} for at, value in ((1, 1), (3, 2)) for kind in ("m", "e")
        ]
        assert texts_of(folder) == [(1, 1, "a")]
