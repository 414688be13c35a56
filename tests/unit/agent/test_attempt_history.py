"""The attempts of a run: what is recorded of each, which limits they count against, and the summary at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, MAX_LOSSES, NOT_RETRYABLE, STOPPED, Outcome
from spotmpi.agent.progress import Progress
from spotmpi.agent.record import Record
from tests.clocks import SetClock

SUBMITTED = 1000.0  # Unix seconds
LIMITS = {
    "start": 60.0,
    "run": None,
    "no_progress": None,
    "failures": 1,
    "interruptions": 2,
    "cost": None,
    "silence": 1.0,
}
FAILED = Outcome(FAILURE, "rank 1 ended with exit code 3")
INTERRUPTED = Outcome(INTERRUPTION, "node 1 is going away")
STOP = Outcome(STOPPED, "a reason")
LOST = "the agent of node 0 was lost before it could record the attempt"
CPU = {"cpu": "a processor", "cores": 4, "memory_gib": 16, "gpus": [], "system": "Linux 6"}


class RecordedRun:
    """A run folder, its history as an agent opens it, and what was written there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, SetClock(SUBMITTED)
        self.clock.unix = 0.0  # by which the machine's clock has been set since
        self.plan: dict[str, Any] = {
            "run": "digits-1",
            "name": "digits",
            "limits": dict(LIMITS),
            "rate": None,
            "grace": 30.0,
            "oversubscribed": False,
            "work": {"program": "digits"},
            "run_on": "all",
            "hosts": ["digits-1-0", "digits-1-1"],
            "slots": 4,
        }

    def history(self, since: float = SUBMITTED) -> AttemptHistory:
        plan: Any = self.plan
        run_record = Record(str(self.folder), self.clock)
        return AttemptHistory(run_record, plan, since, self.clock, image_record=str(self.folder / "image.json"))

    def attempt(self, history: AttemptHistory, outcome: Outcome, seconds: float = 10.0, **reported: Any) -> None:
        """One attempt whose program reported these values of `Progress`."""
        number = history.begin()
        history.record_start(number, [])
        started = self.clock()
        self.clock.seconds += seconds
        progress = Progress(0.0)
        vars(progress).update(reported)
        history.end(number, progress, outcome, started)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def leave_unrecorded(self, number: int, started: float = SUBMITTED) -> None:
        """An attempt whose agent was lost before it could record how it ended."""
        path = self.folder / "attempts" / str(number)
        path.mkdir(parents=True)
        os.utime(path, (started, started))


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path)


def test_an_attempt_is_recorded_with_everything_that_its_program_reported(run: RecordedRun) -> None:
    history = run.history()
    run.clock.seconds = 1005.0
    assert history.begin() == 1
    history.hardware = {0: CPU, 1: CPU}
    progress = Progress(0.0)
    reported = {"resumed": 20, "first_iteration": 21, "first_iteration_time": 1012.0, "iteration": 50, "checkpoint": 40}
    reported["first_iteration_elapsed"] = 1012.0
    vars(progress).update(reported, context={"world_size": 2}, result={"loss": 0.5})
    run.clock.seconds = 1100.0

    history.end(1, progress, INTERRUPTED._replace(lost_nodes=(1,)), started=1010.0)

    expected = {
        "version": 1,
        "attempt": 1,
        "node": 0,
        "allocated": 1005.0,
        "started": 1010.0,
        "ended": 1100.0,
        "elapsed": 95.0,
        "cause": "interruption",
        "reason": "node 1 is going away",
        "exit_code": 75,
        "lost_nodes": [1],
        "failed_machine": None,
        "world": {"members": ["digits-1-0", "digits-1-1"], "ranks": 4, "size": 8, "rate": None},
        "resumed_iteration": 20,
        "first_iteration": 21,
        "first_iteration_time": 1012.0,
        "start": 7.0,
        "last_iteration": 50,
        "checkpoint_iteration": 40,
        "lost_iterations": None,
        "hardware": [{**CPU, "nodes": [0, 1]}],
        "context": {"world_size": 2},
        "result": {"loss": 0.5},
    }
    assert run.read("attempts/1/node-0.json") == expected
    assert history.attempts == [expected] == run.history().attempts


def test_an_end_names_its_submission_where_the_run_folder_may_have_the_ends_of_others(run: RecordedRun) -> None:
    run.history().finish(STOP)
    assert "submission" not in run.events()[-1], "of a run on this machine"
    for submitted in (SUBMITTED, SUBMITTED - 500):  # an agent that was cut off, and one with another clock
        run.plan["submitted"] = submitted
        history = run.history(submitted)
        history.finish(STOP)
        (run.folder / "events.jsonl").write_text("")
        assert history.recorded_end() == STOPPED and run.events()[-1]["submission"] == submitted


@pytest.mark.parametrize(
    ("container", "recorded"),
    [
        ("registry/image@sha256:0123", {"container": "registry/image@sha256:0123"}),
        ("registry/image:latest", {}),  # which image a tag stood for is not known
        (None, {}),
    ],
)
def test_the_start_is_recorded_with_the_counts_the_machines_and_an_image_that_a_digest_names(
    run: RecordedRun, container: str | None, recorded: dict[str, str]
) -> None:
    run.plan["work"] = {"container": container}
    history = run.history()

    history.record_start(history.begin(), [])
    history.record_start(7, [{"member": "node/0", "name": "a"}])

    expected = {"t": SUBMITTED, "event": "started", "failures": 0, "interruptions": 0, **recorded}
    machines = {"machines": [{"member": "node/0", "name": "a"}]}
    assert run.events() == [{**expected, "attempt": 1}, {**expected, "attempt": 7, **machines}]


@pytest.mark.parametrize(
    ("last", "resumed", "first", "repeated"),
    [
        (None, None, None, None),
        (50, 40, 41, 10),
        (50, 0, 10, 50),
        (50, None, None, None),
        (50, 40, None, None),
        (50, None, 48, 3),
        (50, None, 51, 0),
        (30, 40, 41, 0),
    ],
)
def test_the_iterations_between_the_checkpoint_and_the_interruption_are_repeated(
    run: RecordedRun, last: int | None, resumed: int | None, first: int | None, repeated: int | None
) -> None:
    history = run.history()
    run.attempt(history, INTERRUPTED, iteration=last)
    run.attempt(history, INTERRUPTED, resumed=resumed, first_iteration=first)
    assert [attempt["lost_iterations"] for attempt in history.attempts] == [None, repeated]


def test_attempts_without_an_iteration_have_repeated_none_and_the_next_one_repeats_those_before(
    run: RecordedRun,
) -> None:
    """Of a run that was killed while it started again, the report said that it had repeated all of its iterations."""
    history = run.history()
    run.attempt(history, INTERRUPTED, iteration=50)
    for _ in range(2):
        run.attempt(history, INTERRUPTED)
    run.attempt(history, INTERRUPTED, resumed=48, first_iteration=49, iteration=60)
    assert [attempt["lost_iterations"] for attempt in history.attempts] == [None, None, None, 2]


def test_failures_and_interruptions_are_repeated_up_to_a_limit_of_their_own(run: RecordedRun) -> None:
    history = run.history()
    run.attempt(history, FAILED)
    assert history.final_outcome(FAILED) is None
    for _ in range(2):
        run.attempt(history, INTERRUPTED)
        assert history.final_outcome(INTERRUPTED) is None
    run.attempt(history, INTERRUPTED)
    reason = "node 1 is going away; no retries left (limits.interruptions = 2)"
    assert history.final_outcome(INTERRUPTED) == Outcome(NOT_RETRYABLE, reason)
    run.attempt(history, FAILED)
    reason = "rank 1 ended with exit code 3; no retries left (limits.failures = 1)"
    assert history.final_outcome(FAILED) == Outcome(NOT_RETRYABLE, reason)
    events = [(event["event"], event.get("reason"), event["interruptions"]) for event in run.events()]
    interrupted = [("interrupted", "node 1 is going away", number) for number in (1, 2, 3)]
    assert [event for event in events if event[0] != "started"] == interrupted
    assert (history.failures, history.interruptions) == (2, 3)


INSTALL = "; install the module (in the image, where there is one), or send it with `code` or `files`"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'x'", INSTALL),
        ("/usr/bin/python: No module named x", INSTALL),
        (
            "ModuleNotFoundError: No module named 'spotmpi'",
            "; set checkpoint.memory, with which programs find spotmpi.checkpoint, or install spotmpi in this Python",
        ),
        (
            "python: Error while finding module specification for 'x.y' (ModuleNotFoundError: No module named 'x')",
            INSTALL,
        ),
        (
            "ModuleNotFoundError: No module named 'encodings'",
            "; this Python does not find its own library: unset PYTHONHOME, which names the folder of another one",
        ),
        ("SyntaxError: invalid syntax", ""),
        (
            "python: can't open file '/a b/x.py': [Errno 2] No such file or directory",
            "; name the script relative to `code` (without it, to the folder where the run was submitted)",
        ),
    ],
)
def test_a_program_that_cannot_be_read_is_not_started_again(run: RecordedRun, error: str, remedy: str) -> None:
    """Nodes are not paid for an attempt that must end as the one before."""
    failed = FAILED._replace(reason=f"rank 1 ended with exit code 1: {error}")
    history = run.history()
    run.attempt(history, failed)
    reason = f"{failed.reason}; another attempt would end in the same way{remedy}"
    assert history.final_outcome(failed) == Outcome(NOT_RETRYABLE, reason)


@pytest.mark.parametrize("reached", ["iteration", "checkpoint", "resumed"])
def test_a_program_that_could_be_read_once_is_started_again(run: RecordedRun, reached: str) -> None:
    """What it lacks now may be there again: a volume had stumbled."""
    failed = FAILED._replace(reason="rank 1 ended with exit code 1: ModuleNotFoundError: No module named 'x'")
    history = run.history()
    run.attempt(history, INTERRUPTED, **{reached: 3})
    run.attempt(history, failed)
    assert history.final_outcome(failed) is None


def test_errors_that_name_what_a_program_read_may_not_repeat(run: RecordedRun) -> None:
    failed = FAILED._replace(reason="rank 1 ended with exit code 1: ValueError: can't open file 'x', SyntaxError in it")
    history = run.history()
    run.attempt(history, failed)
    assert history.final_outcome(failed) is None


def test_attempts_before_the_submission_count_against_no_limit_and_a_restart_is_recorded_with_the_counts(
    run: RecordedRun,
) -> None:
    before = run.history()
    for _ in range(4):
        run.attempt(before, FAILED)
    resumed = run.history(since=run.clock.seconds)
    assert (resumed.failures, len(resumed.attempts)) == (0, 4)
    run.attempt(resumed, FAILED)
    assert resumed.failures == run.history(since=run.clock.seconds - 10).failures == 1
    assert run.history().failures == 5, "those of a submission stay its own"
    assert resumed.final_outcome(FAILED) is None
    resumed.record_restart(FAILED)
    expected = {"event": "restarted", "reason": FAILED.reason, "failures": 1, "interruptions": 0}
    assert run.events()[-1] == {"t": run.clock.seconds, **expected}


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_attempts_count_whatever_the_clocks_of_their_machines_say(run: RecordedRun, step: float) -> None:
    """A clock is set between two attempts (clock_settime(2)), or the next one is on another machine."""
    run.plan["limits"]["cost"], run.plan["rate"] = 1.0, 3.6  # 1000 s
    for _ in range(3):
        history = run.history()
        run.attempt(history, INTERRUPTED)
        run.clock.unix += step
    run.leave_unrecorded(4, started=SUBMITTED - 10 * 3600)
    history = run.history()
    assert (history.failures, history.interruptions) == (0, 4)
    final = history.reconcile_lost_attempt()
    assert final and str(final.reason).endswith("no retries left (limits.interruptions = 2)")


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_during_attempts_spends_and_saves_no_money(run: RecordedRun, step: float) -> None:
    run.plan["limits"]["cost"], run.plan["rate"] = 1.0, 36.0  # 100 s
    history = run.history()
    for seconds in (40.0, 29.0):
        number = history.begin()
        run.clock.unix += step
        run.clock.seconds += seconds
        history.end(number, Progress(0.0), FAILED, started=SUBMITTED)
        run.clock.unix += step
    history.begin()
    assert history.deadlines().cost == run.clock.seconds + 100 - 69 - 30


def test_a_node_that_is_lost_again_and_again_ends_the_run_unless_the_program_failed(run: RecordedRun) -> None:
    run.plan["limits"]["interruptions"] = run.plan["limits"]["failures"] = 100
    lost = Outcome(INTERRUPTION, "node 1 was lost", (1,))
    history = run.history()
    for _ in range(MAX_LOSSES - 1):
        run.attempt(history, lost)
        assert history.final_outcome(lost) is None
    run.attempt(history, lost)
    final = history.final_outcome(lost)
    assert final and final.cause == NOT_RETRYABLE
    assert str(final.reason).startswith(f"node 1 was lost; node 1 was lost {MAX_LOSSES} times without notice and the")
    assert history.final_outcome(FAILED) is None
    assert run.history(since=run.clock.seconds).final_outcome(lost) is None, "submitted again, it starts over"


def test_a_run_ends_where_its_cost_limit_leaves_no_time_for_another_attempt(run: RecordedRun) -> None:
    run.plan["limits"]["cost"], run.plan["rate"] = 1.0, 36.0  # 100 s
    history = run.history()
    assert history.deadlines().cost == SUBMITTED + 100 - 30
    run.attempt(history, FAILED, seconds=69.0)
    assert history.final_outcome(FAILED) is None
    run.clock.seconds += 1
    final = history.final_outcome(FAILED)
    assert final and (final.cause, final.exit_code) == (NOT_RETRYABLE, protocol.NOT_RETRYABLE)
    assert "limits.cost ($1) is nearly spent at $36 an hour" in str(final.reason)


def test_an_attempt_that_was_lost_with_its_agent_is_paid_at_its_own_rate(run: RecordedRun) -> None:
    run.plan["limits"]["cost"], run.plan["rate"] = 1.0, 36.0  # 100 s
    run.history().begin()
    os.utime(run.folder / "attempts" / "1", (SUBMITTED, SUBMITTED))
    run.clock.seconds += 20
    run.plan["rate"] = 18.0  # 80 s of the first rate are left, which are 160 s of this one
    history = run.history()
    history.begin()
    os.utime(run.folder / "attempts" / "2", (run.clock.seconds, run.clock.seconds))
    assert history.deadlines().cost == pytest.approx(run.clock.seconds + 160 - 30)


def test_time_before_an_attempt_is_paid_from_when_its_nodes_were_held(run: RecordedRun) -> None:
    run.plan["limits"]["cost"], run.plan["rate"] = 1.0, 36.0  # 100 s
    history = run.history()
    run.clock.seconds += 20
    history.begin()
    assert history.deadlines().cost == SUBMITTED + 20 + 100 - 30
    run.clock.seconds += 5
    history.end(1, Progress(0.0), FAILED, run.clock.seconds)
    run.clock.seconds += 15
    history.begin()
    assert history.deadlines().cost == SUBMITTED + 20 + 100 - 30, "the pause is paid, too"


def test_an_attempt_without_a_record_is_an_interruption_with_the_last_reported_iteration(run: RecordedRun) -> None:
    run.leave_unrecorded(2, SUBMITTED + 5)
    lines = [
        {"attempt": 1, "kind": "metric", "iteration": 90},
        {"attempt": 2, "kind": "metric", "iteration": 30},
        {"attempt": 2, "kind": "metric", "loss": 0.5},
        {"attempt": 2, "kind": "checkpoint", "iteration": 40},
        {"attempt": 3, "kind": "metric", "iteration": 95},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"attempt": 2, "kind": "metric", "iter'
    (run.folder / "metrics.jsonl").write_bytes(text.encode() + b"\xff")

    assert run.history().attempts == [
        {
            "version": 1,
            "attempt": 2,
            "node": 0,
            "started": SUBMITTED + 5,
            "cause": "interruption",
            "reason": LOST,
            "lost_nodes": [0],
            "last_iteration": 30,
        }
    ]


def test_attempts_are_read_in_the_order_of_their_numbers_whatever_else_the_folder_holds(run: RecordedRun) -> None:
    for number in (10, 9, 2):
        run.leave_unrecorded(number)
    (run.folder / "attempts" / "notes").mkdir()
    record = {"started": 1.0, "cause": "failure", "last_iteration": None, "reason": "\ufffd"}
    path = run.folder / "attempts" / "9" / "node-0.json"
    path.write_bytes(json.dumps(record, ensure_ascii=False).encode().replace("\ufffd".encode(), b"\xff"))

    attempts = run.history().attempts

    assert [attempt["attempt"] for attempt in attempts] == [2, 9, 10]
    assert attempts[1] == {**record, "attempt": 9} and attempts[0]["last_iteration"] is None


def test_the_attempt_of_an_agent_that_was_lost_is_ended_by_its_successor_within_a_submission(
    run: RecordedRun,
) -> None:
    run.plan["limits"]["interruptions"] = 0
    assert run.history().reconcile_lost_attempt() is None
    run.leave_unrecorded(1)
    assert run.history(since=SUBMITTED + 1).reconcile_lost_attempt() is None
    assert run.history().reconcile_lost_attempt()
    (run.folder / "events.jsonl").unlink()

    final = run.history().reconcile_lost_attempt()

    assert final == Outcome(NOT_RETRYABLE, f"{LOST}; no retries left (limits.interruptions = 0)")
    assert run.events() == [{"t": SUBMITTED, "event": "interrupted", "reason": LOST, "interruptions": 1}]
    history = run.history()
    run.attempt(history, INTERRUPTED)
    assert history.reconcile_lost_attempt() is None, "it was recorded"


def test_the_summary_holds_the_end_of_the_run_and_all_its_attempts(run: RecordedRun) -> None:
    image = run.folder / "image.json"
    image.write_text(json.dumps({"image": "chainermn", "of_no_interest": 1}))
    run.plan["oversubscribed"] = True
    history = run.history()
    history.hardware = {0: CPU}
    run.attempt(history, INTERRUPTED, seconds=5.0, context={"world_size": 2})
    run.attempt(history, INTERRUPTED, seconds=5.0, iteration=10, context={"world_size": 3})
    run.attempt(history, FAILED, iteration=20, context={"world_size": 4}, result={"loss": 0.5})
    history.hardware = {}
    run.attempt(history, STOP, iteration=30, result={"loss": 0.4})

    history.finish(STOP)

    assert run.read("summary.json") == {
        "version": 1,
        "id": "digits-1",
        "name": "digits",
        "state": "stopped",
        "reason": "a reason",
        "started": SUBMITTED,
        "ended": SUBMITTED + 30,
        "failures": 1,
        "interruptions": 2,
        "iteration": 30,
        "oversubscribed": True,
        "work": {"program": "digits"},
        "hardware": [],
        "image": {"image": "chainermn"},
        "context": {"world_size": 4},
        "result": {"loss": 0.4},
        "attempts": history.attempts,
    }
    counts = {"failures": 1, "interruptions": 2}
    assert run.events()[-1] == {"t": SUBMITTED + 30, "event": "stopped", "reason": "a reason", **counts}


def test_the_work_of_a_run_on_a_cluster_names_the_machine_that_its_agents_found(run: RecordedRun) -> None:
    history = run.history()
    history.hardware = {0: {**CPU, "zone": "eu-west-1a"}}
    run.attempt(history, FAILED)
    history.finish(FAILED)
    summary = run.read("summary.json")
    assert summary["work"] == {"program": "digits", "machine": CPU}
    assert summary["hardware"] == [{**CPU, "zone": "eu-west-1a", "nodes": [0]}]


@pytest.mark.parametrize("lost", [False, True], ids=["no attempt", "one whose agent was lost"])
def test_a_run_without_a_recorded_attempt_has_a_summary_too(run: RecordedRun, lost: bool) -> None:
    if lost:
        run.leave_unrecorded(1)
    history = run.history()
    history.finish(Outcome(NOT_RETRYABLE, "the data cannot be staged"))
    summary = run.read("summary.json")
    assert (summary["state"], summary["attempts"], summary["iteration"]) == ("failed", history.attempts, None)
    assert (summary["hardware"], summary["context"], summary["result"]) == ([], {}, {})
