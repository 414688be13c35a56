"""What an agent records of a run, and requests to end one."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotmpi.agent import stop_requests
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.record import Record


def test_attempt_numbers_are_taken_once_even_by_two_agents(tmp_path: Path) -> None:
    first, second = Record(str(tmp_path)), Record(str(tmp_path))

    assert [first.claim_attempt(), second.claim_attempt(), first.claim_attempt()] == [1, 2, 3]
    (tmp_path / "attempts" / "not a number").mkdir()
    (tmp_path / "attempts" / "41").mkdir()
    assert second.claim_attempt() == 42
    first.close()
    second.close()


def test_a_writer_ends_the_torn_line_of_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"t": 1, "event": "star')
    run_record = Record(str(tmp_path), clock=lambda: 2.0)
    run_record.event("started", attempt=1, reason=None)
    run_record.close()
    torn, whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert torn == '{"t": 1, "event": "star' and json.loads(whole) == {"t": 2.0, "event": "started", "attempt": 1}


def test_the_reserve_exists_while_a_run_lives_and_is_removed_afterwards(tmp_path: Path) -> None:
    run_record = Record(str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 100_000
    run_record.close()
    assert list(tmp_path.iterdir()) == []


def test_a_log_line_holds_time_rank_stream_and_text(tmp_path: Path) -> None:
    run_record = Record(str(tmp_path), clock=lambda: 1.5)
    run_record.line(3, Member(NODE, 2), Line(1, "e", "two words  é"))
    run_record.line(3, Member(NODE, 2), Line(None, "o", ""))
    run_record.close()
    text = (tmp_path / "logs" / "3" / "node-2.log").read_text()
    assert text == "1970-01-01T00:00:01.500000Z 1 e two words  é\n1970-01-01T00:00:01.500000Z - o \n"


def test_many_terminals_may_submit_the_same_request_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as terminals:
        submit, folder = stop_requests.submit, str(tmp_path)
        submissions = [terminals.submit(submit, folder, stop_requests.STOP, str(number)) for number in range(200)]
    assert [each.exception() for each in submissions] == [None] * 200
    assert [path.name for path in (tmp_path / "control").iterdir()] == ["stop"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "logs/1/node-0.log", ".reserve"])
def test_a_record_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    """A program, or the pod of a download, could lead it to other files so."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        writer = Record(str(tmp_path))
        writer.metric(1, COORDINATOR, "metric", {})
        writer.line(1, COORDINATOR, Line(None, "o", "hi"))
    assert not (tmp_path / "other").exists()


def test_logs_of_ended_attempts_are_closed(tmp_path: Path) -> None:
    """An agent outlives many attempts."""
    own = Record(str(tmp_path))
    for attempt in (1, 2, 3):
        own.line(own.claim_attempt(), COORDINATOR, Line(None, "o", "text"))
        links = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        logs = [link for link in links if link.is_relative_to(tmp_path / "logs")]
        assert logs == [tmp_path / "logs" / str(attempt) / "node-0.log"]
    own.close()


@pytest.mark.parametrize("kind", [Record, PodRecord])
def test_a_batch_reaches_files_and_stdout_by_few_writes_and_no_file_before_what_is_older(
    tmp_path: Path, kind: type[Record], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writes: list[str] = []
    write = os.write

    def noted(descriptor: int, data: bytes) -> int:
        writes.append(data.decode())
        return write(descriptor, data)

    run_record = kind(str(tmp_path))
    monkeypatch.setattr(os, "write", noted)
    with run_record.batch(in_order=True):
        for number in range(100):
            run_record.line(1, COORDINATOR, Line(0, "o", f"line {number}"))
            if number == 49:
                run_record.metric(1, COORDINATOR, "metric", {"iteration": 1})
        assert len(writes) == 2, "the lines before the metric, then it"
    run_record.close()
    assert [text.count("\n") for text in writes] == [50, 1, 50] and "iteration" in writes[1]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["n"] for each in printed] == (list(range(1, 102)) if kind is PodRecord else [])
