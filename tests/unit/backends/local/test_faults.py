"""What happens to runs on this machine when something is killed, hangs or has to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent.attempt import Attempt
from spotmpi.agent.children import Children, read_context
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import in_run_folder
from spotmpi.agent.coordinator import AttemptLoop
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.core.errors import InputError
from spotmpi.runs import reader
from tests.command_line import SPOTMPI
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import texts
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import paths_of, python, shell


@pytest.mark.parametrize("killed", ["the guarded one", "both"])
def test_killed_agents_leave_no_process_and_a_run_that_can_be_resumed(local: BackendHarness, killed: str) -> None:
    """Its follower reports that it is lost, and how to go on."""
    job = fake_job(iterations=200, pause=0.02)
    run = local.submit(job)
    local.wait_for_iteration(run, 4)  # the checkpoint of iteration 3 is complete
    folder = paths_of(local, run).folder
    guard, guarded = processes.agents(folder)
    events = local.backend.events(run, follow=True)
    next(events)

    if killed == "both":  # without its guard the other one goes on until it is killed as well
        os.kill(guard, signal.SIGKILL)
    os.kill(guarded, signal.SIGKILL)

    wait_until(lambda: not processes.of_run(run) and not processes.agents(folder))
    last = list(events)[-1]
    assert last.kind == "lost" and f"--resume {run}" in str(last.reason)
    lost = local.wait_for_state(run, "lost")
    assert (lost.iteration or 0) >= 3 and lost.reason == "its agent died without recording an end"
    local.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    state = local.wait_for_state(run, "succeeded")
    assert (state.attempt, state.iteration) == (2, 200)
    summary: Any = reader.summary(paths_of(local, run))
    first, second = summary["attempts"]
    assert first["cause"] == "interruption" and second["resumed_iteration"] >= 3


@pytest.mark.parametrize("now", [False, True], ids=["stop", "now"])
def test_a_stop_ends_a_run_whose_agent_is_stopped(local: BackendHarness, now: bool) -> None:
    run = local.submit(shell("echo up; sleep 300"))
    folder = paths_of(local, run).folder
    wait_until(lambda: "up" in texts(list(local.backend.events(run, follow=False))))
    agents = processes.agents(folder)
    assert len(agents) == 2
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)

    local.backend.stop(run, "enough", now)

    assert local.wait_for_state(run, "stopped").reason == "enough"
    wait_until(lambda: not processes.of_run(run) and not processes.agents(folder))


def test_a_fault_that_this_machine_does_not_support_is_named_with_what_it_does(local: BackendHarness) -> None:
    run = local.submit(shell("sleep 300"))

    for member, fault, message in (
        (
            COORDINATOR,
            "evict",
            "fault = 'evict': a run on this machine supports only fault=\"kill\", which kills rank 0",
        ),
        (
            Member(NODE, 1),
            "kill",
            "node = 'node/1': a run on this machine supports only node=0, where rank 0 is killed",
        ),
    ):
        for refuse in (local.backend.require_fault, local.backend.inject_fault):
            with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
                refuse(run, member, fault)


def test_a_run_that_outlives_its_guard_leaves_no_file_outside_of_its_folder(
    local: BackendHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    program = tmp_path / "train.py"
    program.write_text("import time; print('up', flush=True); time.sleep(0.5)")
    job = {"command": ["python3", "train.py"], "files": [str(program)], "launcher": "none", "preload": ["json"]}
    run = local.submit(job)
    wait_until(lambda: "up" in texts(list(local.backend.events(run, follow=False))))
    assert list(temporary.iterdir()), "the socket of its fork server"

    os.kill(processes.agents(paths_of(local, run).folder)[0], signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    wait_until(lambda: not list(temporary.iterdir()))


def test_a_killed_agent_takes_along_the_children_of_its_ranks_even_in_own_sessions(local: BackendHarness) -> None:
    run = local.submit(shell("setsid sleep 300 & (sleep 301 & exec sleep 302) & echo up; exec sleep 303"))
    wait_until(lambda: sum(command.startswith("sleep 30") for command in processes.of_run(run).values()) == 4)

    os.kill(processes.agents(paths_of(local, run).folder)[1], signal.SIGKILL)

    wait_until(lambda: not processes.of_run(run))


def test_sigterm_to_the_agent_writes_a_checkpoint_and_leaves_a_run_that_can_be_resumed(
    local: BackendHarness,
) -> None:
    run = local.submit(fake_job(iterations=1000, pause=0.02, every=100_000))
    local.wait_for_iteration(run, 2)

    os.kill(processes.agents(paths_of(local, run).folder)[0], signal.SIGTERM)

    stopped = local.wait_for_state(run, "stopped")
    assert stopped.interruptions == 1 and "SIGTERM" in (stopped.reason or "")
    checkpoints = [event for event in local.events(run) if event.values.get("kind") == "checkpoint"]
    assert [event.values["reason"] for event in checkpoints] == ["notice"]


def start_deaf(local: BackendHarness, grace: str) -> str:
    """Start a program that ignores signals, so that its checkpoint is never complete; returns the run's id."""
    code = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    run = local.submit(python(code, checkpoint={"grace": grace}))
    wait_until(lambda: "up" in texts(list(local.backend.events(run, follow=False))))
    return run


def test_a_program_that_ignores_signals_is_killed_soon_after_its_grace_ends(local: BackendHarness) -> None:
    run = start_deaf(local, "0.5s")
    start = time.monotonic()

    local.backend.stop(run, "enough", now=False)

    local.wait_for_state(run, "stopped")
    assert 0.5 < time.monotonic() - start < 60
    wait_until(lambda: not processes.of_run(run))


def test_a_second_request_need_not_wait_for_the_first_ones_checkpoint(local: BackendHarness) -> None:
    run = start_deaf(local, "60s")
    local.backend.stop(run, "please", now=False)
    time.sleep(0.3)
    start = time.monotonic()

    local.backend.stop(run, "now", now=True)

    local.wait_for_state(run, "stopped")
    assert time.monotonic() - start < 30


def test_a_child_that_holds_the_pipe_open_does_not_keep_the_run_from_ending(local: BackendHarness) -> None:
    run = local.submit(shell("sleep 300 & echo done"))

    assert local.wait_for_state(run, "succeeded").state == "succeeded"
    wait_until(lambda: not processes.of_run(run))


def test_two_terminals_may_stop_at_once(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=1000, pause=0.02))
    local.wait_for_iteration(run, 2)
    command = [SPOTMPI, "stop", run, "--json"]
    command += ["--runs", str(local.backend.runs_folder)]  # type: ignore[attr-defined]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [json.loads(text)["state"] for text in outputs] == ["stopped", "stopped"]


def test_a_command_that_disappears_is_named(local: BackendHarness, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)

    events = local.all_events({"command": [str(program)], "launcher": "none", "limits": {"failures": 0}})

    assert str(program) in (events[-1].reason or "") and "command not found" in (events[-1].reason or "")


def test_an_internal_error_of_the_agent_ends_the_run_and_is_reported(
    local: BackendHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Any) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Attempt, "run", broken)
    plan = local.backend.plan(local.spec(shell("true")), tmp_path.name, print)
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    mounts = in_run_folder(str(tmp_path), str(tmp_path / "work"), "/nowhere")
    notice: Any = SimpleNamespace(reason=None)
    assert AttemptLoop(read_context(mounts, CLOCK), Children("python3"), notice).run() == 78

    last = list(reader.lines(tmp_path / "events.jsonl"))[-1]
    assert last["event"] == "failed" and "RuntimeError('a bug')" in last["reason"]
    assert "a bug" in capfd.readouterr().err


def test_the_failure_that_ends_a_run_is_counted_in_its_state_as_in_its_summary(local: BackendHarness) -> None:
    run = local.submit(shell("exit 3", limits={"failures": 1}))

    state = local.wait_for_state(run, "failed")

    summary = reader.summary(paths_of(local, run)) or {}
    assert (state.attempt, state.failures, summary["failures"]) == (2, 2, 2)
