"""Attempts of a run on this machine, whose disks stumble and whose clock is set; programs and sleep are simulated."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import processes, stop_requests, supervisor
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.lines import Line
from spotmpi.agent.outcomes import FAILURE, SUCCEEDED, Outcome
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.progress import Progress
from spotmpi.agent.record import Record
from spotmpi.agent.stop_requests import FolderStopSource
from tests.clocks import SetClock
from tests.transient_errors import TransientErrors

FAILED = Outcome(FAILURE, "exit code 3", 1)
DONE = Outcome(SUCCEEDED, None, 0)
STALE = OSError(errno.ESTALE, "Stale file handle", "metrics.jsonl")
LIMITS = {"start": 60.0, "run": None, "no_progress": None, "failures": 2, "interruptions": 9, "cost": None}


class SupervisedRun:
    """A run folder whose attempts end as *ends* says: an outcome or an error, the last one for ever."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.clock = folder, SetClock()
        self.ends: list[Outcome | OSError] = [DONE]
        self.after: Callable[[], object] = lambda: None
        self.attempts = 0
        self.plan: Any = {"limits": dict(LIMITS), "run": "r-1", "name": "r", "work": {}, "rate": None, "grace": 1.0}
        self.plan.update(environment={}, oversubscribed=False)
        (folder / "events.jsonl").touch()
        patch.setattr(supervisor, "Attempt", self._attempt)
        patch.setattr(processes, "adopt_orphans", lambda: None)
        patch.setattr(FolderStopSource, "install_handlers", lambda source: None)

    def _attempt(self, *arguments: Any) -> Any:
        attempt: Any = type("Attempt", (), {"progress": Progress(0.0), "run": lambda each: self._run()})
        return attempt()

    def _run(self) -> Outcome:
        self.attempts += 1
        self.clock.seconds += 5
        assert self.attempts < 50, "it would go on for ever"
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        self.after()
        if isinstance(end, OSError):
            raise end
        return end

    def run(self) -> int:
        return supervisor.Supervisor(str(self.folder), self.plan, "/tmp/scratch", self.clock, self.clock.sleep).run()

    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SupervisedRun:
    return SupervisedRun(tmp_path, monkeypatch)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_switches_no_limit_off(run: SupervisedRun, step: float) -> None:
    run.ends = [FAILED]

    def set_clock() -> None:
        run.clock.unix += step

    run.after = set_clock
    run.run()
    assert run.attempts == 3 and run.summary()["failures"] == 3
    run.clock.unix -= 10 * 3600
    run.run()
    assert run.attempts == 6 and run.summary()["failures"] == 3, "those before it was submitted again don't count"


def test_a_clock_that_is_set_saves_no_money(run: SupervisedRun) -> None:
    run.ends, run.plan["rate"], run.plan["limits"]["cost"] = [FAILED], 36.0, 0.13  # 13 s, of which 1 s is the grace
    run.plan["limits"]["failures"] = 1000

    def set_clock() -> None:
        run.clock.unix -= 3600

    run.after = set_clock
    run.run()
    assert run.attempts == 3 and "limits.cost" in run.summary()["reason"]


def test_errors_of_a_disk_that_may_pass_are_interruptions_with_growing_pauses(run: SupervisedRun) -> None:
    run.ends = [STALE, OSError(errno.EIO, "Input/output error"), STALE, FAILED, DONE]
    assert run.run() == 0
    causes = [attempt["cause"] for attempt in run.summary()["attempts"]]
    assert causes == ["interruption", "interruption", "interruption", "failure", "succeeded"]
    assert run.clock.pauses == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "1 s, 2 s, 4 s; none after a failure of the program"


def test_a_run_that_waits_for_its_disk_can_be_stopped(run: SupervisedRun) -> None:
    run.ends = [STALE]

    def stop() -> None:
        if run.attempts == 3:
            stop_requests.submit(str(run.folder), stop_requests.STOP, "by a test")

    run.after = stop
    assert run.run() == 75 and run.summary()["state"] == "stopped"
    assert run.attempts == 3 and len(run.clock.pauses) == 3


def test_an_error_that_cannot_pass_ends_a_run(run: SupervisedRun) -> None:
    run.ends = [OSError(errno.EACCES, "Permission denied", "mpirun")]
    assert run.run() == 1 and run.attempts == 1
    assert run.summary()["reason"] == "mpirun: Permission denied"


def test_a_record_that_cannot_be_written_for_a_moment_is_written_later(
    run: SupervisedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = TransientErrors(monkeypatch.setattr)
    errors.add("open", "*/attempts/1/*", errno.ESTALE, 3)
    errors.add("open", "*/.summary.json*", errno.EIO, 2)
    assert run.run() == 0 and run.attempts == 1
    assert run.summary()["state"] == "succeeded"


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_folder_that_cannot_be_read_is_not_one_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    (tmp_path / "events.jsonl").touch()
    source = FolderStopSource(str(tmp_path))
    TransientErrors(monkeypatch.setattr).add("stat", f"{tmp_path}/*", error, 5)
    assert [source.pending() for _ in range(3)] == [None] * 3
    assert not source.kill_requested()
    (tmp_path / "events.jsonl").unlink()
    request = source.pending()
    assert request and request.outcome.reason == "the run folder was deleted"


def test_a_file_that_became_stale_is_opened_again_and_holds_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_record = Record(str(tmp_path))
    errors = TransientErrors(monkeypatch.setattr)
    for number in range(4):
        errors.add("write", "*/node-0.log", errno.ESTALE, number % 2)
        run_record.line(1, 0, Line(0, "o", f"line {number}"))
    errors.add("write", "*/node-0.log", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        run_record.line(1, 0, Line(0, "o", "none"))
    run_record.line(1, 0, Line(0, "o", "line 4"))
    run_record.close()
    lines = (tmp_path / "logs" / "1" / "node-0.log").read_text().splitlines()
    assert [line.split(" ", 3)[3] for line in lines] == [f"line {number}" for number in range(5)]


def test_the_logs_of_any_number_of_attempts_and_nodes_need_few_descriptors(tmp_path: Path) -> None:
    run_record = Record(str(tmp_path))
    descriptors = Path("/dev/fd")
    before = len(list(descriptors.iterdir()))
    for turn in range(2):
        for attempt in range(1, 40):
            for node in range(4):
                run_record.line(attempt, node, Line(0, "o", str(turn)))
    assert len(list(descriptors.iterdir())) - before <= 32
    run_record.close()
    logs = list(tmp_path.glob("logs/*/*.log"))
    assert len(logs) == 39 * 4 and all(log.read_text().count("\n") == 2 for log in logs)


def test_a_history_that_cannot_be_read_is_not_one_of_lost_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "1" / "node-0.json").write_text("{}")
    TransientErrors(monkeypatch.setattr).add("open", "*/node-0.json", errno.EIO)
    run_record = Record(str(tmp_path))
    plan: Any = {}
    with pytest.raises(OSError, match="Input/output"):
        AttemptHistory(run_record, plan, 0.0)


def test_metrics_have_the_time_awake_beside_the_time_for_people(tmp_path: Path) -> None:
    clock = SetClock()
    for run_record in (Record(str(tmp_path), clock), PodRecord(str(tmp_path), clock)):
        run_record.metric(1, 0, "metric", {"iteration": 1, "awake": 7})
        clock.unix -= 3600
        clock.seconds += 0.02
        run_record.metric(1, 0, "metric", {"iteration": 2}, ago=0.01)
        run_record.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["awake"] for line in lines] == pytest.approx([100.0, 100.01, 100.02, 100.03])
