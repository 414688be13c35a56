"""What happens to runs on this machine when something is killed, hangs or has to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import supervisor
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import attempts_of, events_of, paths_of, python, rank_of, shell, texts


def test_a_killed_rank_ends_the_attempt_and_the_next_resumes_above_zero(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=40, pause=0.02, every=2))
    local.wait_for_iteration(run, 5)

    os.kill(rank_of(run), signal.SIGKILL)

    state = local.wait_for_state(run, "succeeded")
    assert (state.attempt, state.failures, state.interruptions) == (2, 1, 0)
    first, second = attempts_of(local, run)
    assert "SIGKILL" in first["reason"] and first["last_iteration"] >= 5
    assert second["resumed_iteration"] > 0
    assert second["lost_iterations"] == first["last_iteration"] - second["resumed_iteration"] <= 2


@pytest.mark.parametrize("which", [0, 1], ids=["the guard", "the one that it guards"])
def test_a_killed_supervisor_leaves_no_process_and_a_run_that_can_be_resumed(local: BackendHarness, which: int) -> None:
    job = fake_job(iterations=200, pause=0.02)
    run = local.submit(job)
    local.wait_for_iteration(run, 4)  # the checkpoint of iteration 3 is complete
    folder = paths_of(local, run).folder
    both = processes.supervisors(folder)
    assert len(both) == 2

    os.kill(both[which], signal.SIGKILL)
    if which == 0:  # without its guard it goes on until it is killed as well, and the ranks die with it
        os.kill(both[1], signal.SIGKILL)

    wait_until(lambda: not processes.of_run(run) and not processes.supervisors(folder))
    lost = local.wait_for_state(run, "lost")
    assert (lost.iteration or 0) >= 3 and lost.reason == "its supervisor died without recording an end"
    local.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    state = local.wait_for_state(run, "succeeded")
    assert (state.attempt, state.iteration) == (2, 200)
    summary: Any = reader.summary(paths_of(local, run))
    first, second = summary["attempts"]
    assert first["cause"] == "interruption" and second["resumed_iteration"] >= 3


def test_a_killed_supervisor_takes_along_the_children_of_its_ranks_even_in_own_sessions(local: BackendHarness) -> None:
    run = local.submit(shell("setsid sleep 300 & (sleep 301 & exec sleep 302) & echo up; exec sleep 303"))
    wait_until(
        lambda: len([command for command in processes.of_run(run).values() if command.startswith("sleep 30")]) == 4
    )

    os.kill(processes.supervisors(paths_of(local, run).folder)[1], signal.SIGKILL)

    wait_until(lambda: not processes.of_run(run))


def test_a_follower_reports_that_the_supervisor_is_gone(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=1000, pause=0.02))
    local.wait_for_iteration(run, 2)
    events = local.backend.events(run, follow=True)
    next(events)
    os.kill(processes.supervisors(paths_of(local, run).folder)[1], signal.SIGKILL)

    last = list(events)[-1]

    assert last.kind == "lost" and f"--resume {run}" in (last.reason or "")


def test_sigterm_to_the_supervisor_writes_a_checkpoint_and_leaves_a_run_that_can_be_resumed(
    local: BackendHarness,
) -> None:
    run = local.submit(fake_job(iterations=1000, pause=0.02, every=100_000))
    local.wait_for_iteration(run, 2)

    os.kill(processes.supervisors(paths_of(local, run).folder)[0], signal.SIGTERM)

    stopped = local.wait_for_state(run, "stopped")
    assert stopped.interruptions == 1 and "SIGTERM" in (stopped.reason or "")
    assert [event.values["reason"] for event in events_of(local, run) if event.values.get("kind") == "checkpoint"] == [
        "notice"
    ]


def test_a_child_that_ignores_sigterm_is_killed_soon_after(
    local: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    run = local.submit(python(code, checkpoint={"grace": "1s"}))
    wait_until(lambda: "deaf" in texts(list(local.backend.events(run, follow=False))))
    start = time.monotonic()

    local.backend.stop(run, "enough", now=False)

    local.wait_for_state(run, "stopped")
    assert time.monotonic() - start < 60
    wait_until(lambda: not processes.of_run(run))


def test_a_child_that_holds_the_pipe_open_does_not_keep_the_run_from_ending(local: BackendHarness) -> None:
    run = local.submit(shell("sleep 300 & echo done"))

    assert local.wait_for_state(run, "succeeded").state == "succeeded"
    wait_until(lambda: not processes.of_run(run))


def test_a_checkpoint_that_is_never_complete_is_waited_for_until_grace_ends(local: BackendHarness) -> None:
    code = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    run = local.submit(python(code, checkpoint={"grace": "0.5s"}))
    wait_until(lambda: "up" in texts(list(local.backend.events(run, follow=False))))
    start = time.monotonic()

    local.backend.stop(run, "enough", now=False)

    local.wait_for_state(run, "stopped")
    assert 0.5 < time.monotonic() - start < 60


def test_a_second_request_need_not_wait_for_the_first_ones_checkpoint(local: BackendHarness) -> None:
    code = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    run = local.submit(python(code, checkpoint={"grace": "60s"}))
    wait_until(lambda: "up" in texts(list(local.backend.events(run, follow=False))))
    local.backend.stop(run, "please", now=False)
    time.sleep(0.3)
    start = time.monotonic()

    local.backend.stop(run, "now", now=True)

    local.wait_for_state(run, "stopped")
    assert time.monotonic() - start < 30


def test_two_terminals_may_stop_at_once(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=1000, pause=0.02))
    local.wait_for_iteration(run, 2)
    command = [str(Path(sys.executable).with_name("spotmpi")), "stop", run, "--json"]
    command += ["--runs", str(local.backend.runs_folder)]  # type: ignore[attr-defined]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    outputs = [process.communicate(timeout=30)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [json.loads(text)["state"] for text in outputs] == ["stopped", "stopped"]


def test_a_command_that_disappears_is_named(local: BackendHarness, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)

    events = local.all_events({"command": [str(program)], "launcher": "none", "limits": {"failures": 0}})

    assert str(program) in (events[-1].reason or "") and "command not found" in (events[-1].reason or "")


def test_an_internal_error_of_the_supervisor_ends_the_run_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Any) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(supervisor.Supervisor, "run", broken)
    assert supervisor._supervise(str(tmp_path), {}) == 1  # type: ignore[typeddict-item]

    last = list(reader.lines(tmp_path / "events.jsonl"))[-1]
    assert last["event"] == "failed" and "RuntimeError('a bug')" in last["reason"]
    assert "a bug" in capfd.readouterr().err


def test_the_failure_that_ends_a_run_is_counted_in_its_state_as_in_its_summary(local: BackendHarness) -> None:
    run = local.submit(shell("exit 3", limits={"failures": 1}))

    state = local.wait_for_state(run, "failed")

    summary = reader.summary(paths_of(local, run)) or {}
    assert (state.attempt, state.failures, summary["failures"]) == (2, 2, 2)
