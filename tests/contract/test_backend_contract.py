"""What every backend promises, whatever it runs on (see `spotmpi.backends.base`)."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import RunInUse, UnknownRun
from tests.contract.conftest import Somewhere
from tests.contract.fake_program import fake_job
from tests.contract.told import command, iterations, kinds, texts


def test_a_run_gives_its_events_in_order_and_ends_with_its_end(place: Somewhere) -> None:
    events = place.all_events(fake_job(iterations=3))

    assert kinds(events) == ["submitted", "started", "succeeded"]
    assert events[0].kind == "submitted" and events[-1].kind == "succeeded"
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert iterations(events) == [1, 2, 3]
    assert texts(events) == ["hello from attempt 1", "bye"]


def test_events_read_again_after_the_end_are_the_same(place: Somewhere) -> None:
    run = place.submit(fake_job(iterations=3))
    followed = list(place.backend.events(run, follow=True))

    again = list(place.backend.events(run, follow=True))

    assert [event.to_json() for event in again] == [event.to_json() for event in followed]
    assert [event.to_json() for event in place.backend.events(run, follow=False)] == [e.to_json() for e in followed]


def test_a_failing_command_is_tried_as_often_as_the_limit_allows_and_its_reason_is_told(place: Somewhere) -> None:
    failing = command("sh", "-c", "echo trying; echo no such weights >&2; exit 3", limits={"failures": 2})
    events = place.all_events(failing)

    assert kinds(events) == ["submitted", "started", "restarted", "started", "restarted", "started", "failed"]
    assert texts(events).count("trying") == 3
    assert [event.attempt for event in events if event.kind == "started"] == [1, 2, 3]
    reason = events[-1].reason or ""
    assert "exit code 3" in reason and "no such weights" in reason and "limits.failures = 2" in reason


def test_no_failure_allowed_means_one_attempt(place: Somewhere) -> None:
    events = place.all_events(command("false", limits={"failures": 0}))

    assert kinds(events) == ["submitted", "started", "failed"]


@pytest.mark.parametrize("what", ["exit 78", "fatal"])
def test_what_starting_again_cannot_help_is_not_tried_again(place: Somewhere, what: str) -> None:
    events = place.all_events(fake_job(fault={1: [2, what]}, limits={"failures": 5}))

    assert kinds(events) == ["submitted", "started", "failed"]
    assert events[-1].reason == "wrong key: use another" if what == "fatal" else "78" in (events[-1].reason or "")


def test_exit_code_75_is_an_interruption_and_uses_up_no_failure(place: Somewhere) -> None:
    run = place.submit(fake_job(iterations=4, fault={1: [2, "exit 75"], 2: [3, "exit 75"]}, limits={"failures": 0}))
    events = list(place.backend.events(run, follow=True))

    again = ["interrupted", "restarted"]
    assert kinds(events) == ["submitted", "started", *again, "started", *again, "started", "succeeded"]
    state = place.backend.state(run)
    assert (state.failures, state.interruptions, state.attempt) == (0, 2, 3)


def test_a_launcher_that_lost_a_host_has_not_succeeded_though_its_exit_code_says_so(place: Somewhere) -> None:
    words = "PRTE has lost communication with a remote daemon.\\n\\nRemote daemon: [prterun-a-1@0,1] on node a-1\\n"
    once = f'[ "$SPOTMPI_ATTEMPT" = 2 ] || printf "{words}" >&2'
    events = place.all_events(command("sh", "-c", once, limits={"failures": 0}))

    assert kinds(events) == ["submitted", "started", "interrupted", "restarted", "started", "succeeded"]
    assert "lost a-1" in str(next(event.reason for event in events if event.kind == "interrupted"))


def test_interruptions_have_a_limit_of_their_own(place: Somewhere) -> None:
    events = place.all_events(command("sh", "-c", "exit 75", limits={"interruptions": 1}))

    assert kinds(events).count("started") == 2
    assert "limits.interruptions = 1" in (events[-1].reason or "")


def test_a_failed_attempt_is_continued_from_its_checkpoint(place: Somewhere) -> None:
    run = place.submit(fake_job(iterations=9, every=3, fault={1: [5, "kill"]}))
    events = list(place.backend.events(run, follow=True))

    assert iterations(events) == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9]
    assert [event.values["iteration"] for event in events if event.values.get("kind") == "resumed"] == [3]
    assert place.backend.state(run).failures == 1


def test_a_stop_waits_for_a_checkpoint_and_resume_goes_on_from_it(place: Somewhere) -> None:
    job = fake_job(iterations=60, pause=0.05, every=1000)
    run = place.submit(job)
    place.iteration_once(run, 2)

    place.backend.stop(run, "enough for today", now=False)
    stopped = place.state_once(run, "stopped")

    assert stopped.reason == "enough for today" and 2 <= (stopped.iteration or 0) < 60
    place.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    finished = place.state_once(run, "succeeded")
    events = list(place.backend.events(run, follow=True))
    resumed = [event.values["iteration"] for event in events if event.values.get("kind") == "resumed"]
    assert resumed == [stopped.iteration]
    assert finished.iteration == 60 and finished.attempt == 2
    assert iterations(events) == list(range(1, 61))
    assert kinds(events) == ["submitted", "started", "stopped", "submitted", "started", "succeeded"]


def test_a_stop_is_not_lost_when_it_comes_right_after_the_submission(place: Somewhere) -> None:
    run = place.submit(command("sleep", "60"))

    place.backend.stop(run, "changed my mind", now=False)

    assert place.state_once(run, "stopped").reason == "changed my mind"


def test_now_means_without_a_checkpoint(place: Somewhere) -> None:
    run = place.submit(fake_job(iterations=1000, pause=0.05, every=10_000))
    place.iteration_once(run, 2)

    place.backend.stop(run, "now", now=True)

    place.state_once(run, "stopped")
    events = list(place.backend.events(run, follow=True))
    assert not [event for event in events if event.values.get("kind") == "checkpoint"]


def test_stopping_a_run_that_is_over_changes_nothing(place: Somewhere) -> None:
    run = place.submit(command("true"))
    before = place.state_once(run, "succeeded")

    place.backend.stop(run, "too late", now=True)

    assert place.backend.state(run) == before


def test_a_run_that_is_going_on_cannot_be_started_again(place: Somewhere) -> None:
    run = place.submit(command("sleep", "60"))

    with pytest.raises(RunInUse, match=run):
        place.resume(run, command("sleep", "60"))

    place.backend.stop(run, "done", now=True)
    place.state_once(run, "stopped")


def test_a_program_that_says_nothing_has_until_the_start_limit(place: Somewhere) -> None:
    events = place.all_events(command("sleep", "60", limits={"start": "0.5s"}))

    assert events[-1].kind == "failed" and "limits.start (0.5s)" in (events[-1].reason or "")


def test_a_program_without_progress_is_ended_and_tried_again(place: Somewhere) -> None:
    job = fake_job(iterations=4, fault={1: [2, "hang"]}, limits={"no_progress": "0.6s"})
    events = place.all_events(job)

    assert kinds(events) == ["submitted", "started", "restarted", "started", "succeeded"]
    told = next(event.reason or "" for event in events if event.kind == "restarted")
    assert "no progress" in told and "last iteration 2" in told
    assert iterations(events) == [1, 2, 3, 4]


def test_a_run_beyond_its_time_ends_with_a_checkpoint_and_for_good(place: Somewhere) -> None:
    events = place.all_events(fake_job(iterations=10_000, pause=0.02, every=10_000, limits={"run": "4s"}))

    assert kinds(events) == ["submitted", "started", "failed"]
    assert "limits.run (4s)" in (events[-1].reason or "")
    assert [event.values["reason"] for event in events if event.values.get("kind") == "checkpoint"] == ["notice"]


def test_state_and_list_tell_how_far_a_run_is(place: Somewhere) -> None:
    job = fake_job(iterations=1000, pause=0.05)
    run = place.submit(job)
    place.iteration_once(run, 2)

    state = place.backend.state(run)

    assert (state.id, state.name, state.state, state.attempt) == (run, "fake", "running", 1)
    assert state.total_iterations == 1000 and (state.iteration or 0) >= 2
    assert state.scalars["loss"] == pytest.approx(1 / state.scalars["iteration"])
    assert [found.id for found in place.backend.list()] == [run]
    place.backend.stop(run, "seen", now=True)
    ended = place.state_once(run, "stopped")
    assert ended.submitted and ended.ended and ended.ended > ended.submitted


def test_list_gives_the_oldest_first(place: Somewhere) -> None:
    made = [place.submit(command("sh", "-c", f"sleep {pause}")) for pause in (0.4, 0.01, 0.2)]
    for run in made:
        place.state_once(run, "succeeded")

    assert [state.id for state in place.backend.list()] == made


def test_an_unknown_run_is_named(place: Somewhere) -> None:
    with pytest.raises(UnknownRun, match="nothing-of-that-name"):
        place.backend.state("nothing-of-that-name")


def test_a_run_is_read_by_another_process_while_it_goes_on(place: Somewhere, tmp_path: Path) -> None:
    run = place.submit(fake_job(iterations=15, pause=0.05))
    place.iteration_once(run, 2)

    other = subprocess.run(
        [str(Path(sys.executable).with_name("spotmpi")), "logs", "-f", run, "--runs", str(tmp_path / "runs"), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert other.returncode == 0, other.stderr
    told = [json.loads(line) for line in other.stdout.splitlines()]
    assert told == [event.to_json() for event in place.backend.events(run, follow=True)]
    assert [event["iteration"] for event in told if event.get("kind") == "metric"] == list(range(1, 16))


def test_two_runs_at_once_do_not_mix(place: Somewhere) -> None:
    made = [place.submit(command("sh", "-c", f"for i in 1 2 3; do echo {word}; done")) for word in ("one", "two")]

    said = [texts(list(place.backend.events(run, follow=True))) for run in made]

    assert said == [["one"] * 3, ["two"] * 3]
    assert not set(itertools.chain(*said)) - {"one", "two"}


def test_a_run_ends_with_a_checkpoint_before_it_costs_more_than_its_limit(place: Somewhere) -> None:
    # A dollar a second: of four dollars, one second is kept for the checkpoint.
    money: dict[str, Any] = {"price": 3600.0, "limits": {"cost": 4.0}, "checkpoint": {"grace": "1s"}}
    run = place.submit(fake_job(iterations=100_000, **money))
    events = list(place.backend.events(run, follow=True))

    assert kinds(events)[-1] == "failed" and "limits.cost ($4) is nearly spent" in (events[-1].reason or "")
    began = next(event.time for event in events if event.kind == "started")
    assert 2.0 < events[-1].time - began < 4.0
    assert [event.values["reason"] for event in events if event.values.get("kind") == "checkpoint"][-1] == "notice"
