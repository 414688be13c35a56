"""What every backend promises, whatever it runs on (see `spotmpi.backends.base`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import RunInUse, UnknownRun
from tests.command_line import spotmpi_process
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import command, iterations, kinds, texts
from tests.contract.fake_program import fake_job


def test_a_run_gives_its_events_in_order_and_the_same_ones_after_its_end(harness: BackendHarness) -> None:
    run = harness.submit(fake_job(iterations=3))
    events = harness.events(run)

    assert kinds(events) == ["submitted", "started", "succeeded"]
    assert events[0].kind == "submitted" and events[-1].kind == "succeeded"
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert iterations(events) == [1, 2, 3]
    assert texts(events) == ["hello from attempt 1", "bye"]
    for follow in (True, False):
        again = harness.backend.events(run, follow=follow)
        assert [event.to_json() for event in again] == [event.to_json() for event in events]


def test_a_failing_command_is_retried_up_to_the_limit_and_its_reason_reported(harness: BackendHarness) -> None:
    failing = command("sh", "-c", "echo trying; echo no such weights >&2; exit 3", limits={"failures": 2})
    events = harness.all_events(failing)

    assert kinds(events) == ["submitted", "started", "restarted", "started", "restarted", "started", "failed"]
    assert texts(events).count("trying") == 3
    assert [event.attempt for event in events if event.kind == "started"] == [1, 2, 3]
    reason = events[-1].reason or ""
    assert "exit code 3" in reason and "no such weights" in reason and "limits.failures = 2" in reason


@pytest.mark.parametrize(
    ("job", "attempts", "reason"),
    [
        pytest.param(command("false", limits={"failures": 0}), 1, "exit code 1", id="no failure is allowed"),
        pytest.param(fake_job(fault={1: [2, "exit 78"]}, limits={"failures": 5}), 1, "78", id="exit code 78"),
        pytest.param(fake_job(fault={1: [2, "fatal"]}), 1, "wrong key: use another", id="an error of the user"),
        pytest.param(
            command("sh", "-c", "exit 75", limits={"interruptions": 1}),
            2,
            "limits.interruptions = 1",
            id="interruptions",
        ),
        # Within this limit a program starts that prints nothing, or its pod does not even do that.
        pytest.param(command("sleep", "60", limits={"start": "0.5s"}), 1, "limits.start (0.5s)", id="silence"),
    ],
)
def test_a_run_fails_with_its_reason_after_as_many_attempts_as_its_limits_allow(
    harness: BackendHarness, job: dict[str, Any], attempts: int, reason: str
) -> None:
    events = harness.all_events(job)

    assert max(1, kinds(events).count("started")) == attempts
    assert events[-1].kind == "failed" and reason in str(events[-1].reason)


LOST_HOST = "PRTE has lost communication with a remote daemon.\\n\\nRemote daemon: [prterun-a-1@0,1] on node a-1\\n"


@pytest.mark.parametrize(
    ("job", "interruptions", "reason"),
    [
        pytest.param(fake_job(iterations=4, fault={1: [2, "exit 75"], 2: [3, "exit 75"]}), 2, "75", id="exit code 75"),
        pytest.param(
            command("sh", "-c", f'[ "$SPOTMPI_ATTEMPT" = 2 ] || printf "{LOST_HOST}" >&2'),
            1,
            "lost a-1",
            id="a launcher that lost a host, even with exit code 0",
        ),
    ],
)
def test_an_interruption_uses_up_no_failure(
    harness: BackendHarness, job: dict[str, Any], interruptions: int, reason: str
) -> None:
    run = harness.submit({**job, "limits": {"failures": 0}})
    events = harness.events(run)

    again = ["started", "interrupted", "restarted"] * interruptions
    assert kinds(events) == ["submitted", *again, "started", "succeeded"]
    assert reason in str(next(event.reason for event in events if event.kind == "interrupted"))
    state = harness.backend.state(run)
    assert (state.failures, state.interruptions, state.attempt) == (0, interruptions, interruptions + 1)


def test_a_failed_attempt_is_resumed_from_its_checkpoint(harness: BackendHarness) -> None:
    run = harness.submit(fake_job(iterations=9, every=3, fault={1: [5, "kill"]}))
    events = harness.events(run)

    assert iterations(events) == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9]
    assert "SIGKILL" in str(next(event.reason for event in events if event.kind == "restarted"))
    assert [event.values["iteration"] for event in events if event.values.get("kind") == "resumed"] == [3]
    assert harness.backend.state(run).failures == 1


def test_a_stop_waits_for_a_checkpoint_and_resume_continues_from_it(harness: BackendHarness) -> None:
    job = fake_job(iterations=60, pause=0.2, every=1000)
    run = harness.submit(job)
    harness.wait_for_iteration(run, 2)

    harness.backend.stop(run, "enough for today", now=False)
    stopped = harness.wait_for_state(run, "stopped")

    assert stopped.reason == "enough for today" and 2 <= (stopped.iteration or 0) < 60
    harness.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    finished = harness.wait_for_state(run, "succeeded")
    events = harness.events(run)
    resumed = [event.values["iteration"] for event in events if event.values.get("kind") == "resumed"]
    assert resumed == [stopped.iteration]
    assert finished.iteration == 60 and finished.attempt == 2
    assert iterations(events) == list(range(1, 61))
    assert kinds(events) == ["submitted", "started", "stopped", "submitted", "started", "succeeded"]


def test_a_stop_right_after_the_submission_takes_effect(harness: BackendHarness) -> None:
    run = harness.submit(command("sleep", "60"))

    harness.backend.stop(run, "changed my mind", now=False)

    assert harness.wait_for_state(run, "stopped").reason == "changed my mind"


def test_now_means_without_a_checkpoint(harness: BackendHarness) -> None:
    run = harness.submit(fake_job(iterations=1000, pause=0.05, every=10_000))
    harness.wait_for_iteration(run, 2)

    harness.backend.stop(run, "now", now=True)

    harness.wait_for_state(run, "stopped")
    events = harness.events(run)
    assert not [event for event in events if event.values.get("kind") == "checkpoint"]


def test_stopping_an_ended_run_changes_nothing(harness: BackendHarness) -> None:
    run = harness.submit(command("true"))
    before = harness.wait_for_state(run, "succeeded")

    harness.backend.stop(run, "too late", now=True)

    assert harness.backend.state(run) == before


def test_a_running_run_cannot_be_started_again(harness: BackendHarness) -> None:
    run = harness.submit(command("sleep", "300"))  # on a cluster its end is waited for, up to 90 s

    with pytest.raises(RunInUse, match=run):
        harness.resume(run, command("sleep", "300"))

    harness.backend.stop(run, "done", now=True)
    harness.wait_for_state(run, "stopped")


def test_a_program_without_progress_is_killed_and_retried(harness: BackendHarness) -> None:
    job = fake_job(iterations=4, fault={1: [2, "hang"]}, limits={"no_progress": "2s"})
    events = harness.all_events(job)

    assert kinds(events) == ["submitted", "started", "restarted", "started", "succeeded"]
    printed = next(event.reason or "" for event in events if event.kind == "restarted")
    assert "no progress" in printed and "last iteration 2" in printed
    assert iterations(events) == [1, 2, 3, 4]


def test_a_run_beyond_its_time_limit_ends_with_a_checkpoint_and_is_not_retried(harness: BackendHarness) -> None:
    for limit in (4, 16, 64):  # seconds; a busy machine may not have begun to train after the first
        job = fake_job(iterations=100_000, pause=0.02, every=100_000, limits={"run": f"{limit}s"})
        events = harness.all_events(job)
        assert kinds(events) == ["submitted", "started", "failed"]
        assert f"limits.run ({limit}s)" in str(events[-1].reason)
        if iterations(events):
            break
    assert [event.values["reason"] for event in events if event.values.get("kind") == "checkpoint"] == ["notice"]


def test_state_and_list_report_the_progress_of_a_run(harness: BackendHarness) -> None:
    job = fake_job(iterations=1000, pause=0.05)
    run = harness.submit(job)
    harness.wait_for_iteration(run, 2)

    state = harness.backend.state(run)

    assert (state.id, state.name, state.state, state.attempt) == (run, "fake", "running", 1)
    assert state.total_iterations == 1000 and (state.iteration or 0) >= 2
    assert state.scalars["loss"] == pytest.approx(1 / state.scalars["iteration"])
    assert [state.id for state in harness.backend.list()] == [run]
    harness.backend.stop(run, "seen", now=True)
    final = harness.wait_for_state(run, "stopped")
    assert final.submitted and final.ended and final.ended > final.submitted


def test_runs_at_once_do_not_mix_and_are_listed_the_oldest_first(harness: BackendHarness) -> None:
    pauses = {"one": 0.4, "two": 0.01, "three": 0.2}  # seconds, so that they end in another order
    lines = "for i in 1 2 3; do echo {}; done; sleep {}"
    runs = [harness.submit(command("sh", "-c", lines.format(*item))) for item in pauses.items()]

    assert [texts(harness.events(run)) for run in runs] == [[word] * 3 for word in pauses]
    assert [state.id for state in harness.backend.list()] == runs


def test_an_unknown_run_is_named(harness: BackendHarness) -> None:
    with pytest.raises(UnknownRun, match="nothing-of-that-name"):
        harness.backend.state("nothing-of-that-name")


def test_another_process_follows_a_running_run(harness: BackendHarness, tmp_path: Path) -> None:
    run = harness.submit(fake_job(iterations=15, pause=0.05))
    harness.wait_for_iteration(run, 2)

    other = spotmpi_process("logs", "-f", run, "--runs", str(tmp_path / "runs"), "--json")

    assert other.returncode == 0, other.stderr
    printed = [json.loads(line) for line in other.stdout.splitlines()]
    assert printed == [event.to_json() for event in harness.events(run)]
    assert [event["iteration"] for event in printed if event.get("kind") == "metric"] == list(range(1, 16))


def test_a_run_ends_with_a_checkpoint_before_it_costs_more_than_its_limit(harness: BackendHarness) -> None:
    # A dollar a second: of six dollars, one second is kept for the checkpoint.
    money: dict[str, Any] = {"price": 3600.0, "limits": {"cost": 6.0}, "checkpoint": {"grace": "1s"}}
    run = harness.submit(fake_job(iterations=100_000, **money))
    events = harness.events(run)

    assert kinds(events)[-1] == "failed" and "limits.cost ($6) is nearly spent" in str(events[-1].reason)
    start = next(event.time for event in events if event.kind == "started")
    assert 2.0 < events[-1].time - start < 30
    assert [event.values["reason"] for event in events if event.values.get("kind") == "checkpoint"][-1] == "notice"
