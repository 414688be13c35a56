"""Keys, signals and terminals that go away, while a command runs in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.cli.terminal import (
    SPOTMPI,
    iteration_of,
    job,
    on_a_terminal,
    only_run,
    spotmpi,
    spotmpi_process,
    start_process,
    write_spec,
)

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_reader_that_goes_away_gets_no_complaint() -> None:
    spotmpi("run", job("seq 20000"))

    result = subprocess.run(
        f"{SPOTMPI} logs {only_run().id} | head -1", shell=True, capture_output=True, text=True, executable="/bin/bash"
    )

    assert result.stdout == "1\n" and "Traceback" not in result.stderr and "Broken" not in result.stderr


def test_a_terminal_without_unicode_gets_the_rest_of_the_line() -> None:
    result = spotmpi_process(
        "run", job("echo caf\u00e9"), env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )

    assert result.stdout.splitlines()[0] == "caf?" and result.returncode == 0


def test_the_first_ctrl_c_stops_with_a_checkpoint() -> None:
    process = start_process("run", write_spec(fake_job(iterations=5000, pause=0.02, every=100_000)))
    paths = only_run()
    wait_until(lambda: iteration_of(paths) >= 3)

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopping after a checkpoint; Ctrl-C again kills" in err and "checkpoint at iteration" in err
    assert out.splitlines()[-1] == f"{paths.id} stopped: Ctrl-C" and "Traceback" not in err
    assert reader.state(paths).state == "stopped"
    wait_until(lambda: not processes.of_run(paths.id))


def test_the_second_ctrl_c_kills() -> None:
    deaf = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    process = start_process("run", write_spec({"command": ["python3", "-c", deaf], "launcher": "none"}))
    paths = only_run()
    wait_until(lambda: (paths.folder / "rank-0.pid").exists())

    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "killing the run" in err
    assert reader.state(paths).state == "stopped"
    wait_until(lambda: not processes.of_run(paths.id))


def test_ctrl_c_while_following_logs_leaves_the_run_alone() -> None:
    run = spotmpi("run", write_spec(fake_job(iterations=5000, pause=0.02)), "--detach").stdout.strip()
    process = start_process("logs", "-f", run)
    wait_until(lambda: iteration_of(only_run()) >= 2)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello from attempt 1\n"

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "Traceback" not in err
    assert reader.state(only_run()).state == "running"
    assert json.loads(spotmpi("stop", run, "--json").stdout)["state"] == "stopped"


def test_a_detached_run_is_followed_from_another_terminal_and_again_after_that_has_died() -> None:
    run = spotmpi("run", write_spec(fake_job(iterations=120, pause=0.02)), "--detach").stdout.strip()
    assert reader.state(only_run()).id == run
    first = start_process("logs", "-f", run, "--json")
    assert first.stdout is not None
    wait_until(lambda: iteration_of(only_run()) >= 3)
    first_lines = [first.stdout.readline() for _ in range(4)]
    first.kill()
    first.communicate()

    second = spotmpi_process("logs", "-f", run, "--json")

    events = [json.loads(line) for line in second.stdout.splitlines()]
    assert [json.loads(line) for line in first_lines] == events[:4]
    assert [event["iteration"] for event in events if event.get("kind") == "metric"] == list(range(1, 121))
    assert events[-1]["event"] == "succeeded" and second.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_run_outlives_the_terminal_that_started_it(number: signal.Signals) -> None:
    process = start_process("run", write_spec(fake_job(iterations=60, pause=0.02)), start_new_session=True)
    paths = only_run()
    wait_until(lambda: iteration_of(paths) >= 2)

    os.killpg(process.pid, number)
    process.communicate()

    wait_until(lambda: reader.state(paths).state == "succeeded")
    assert reader.state(paths).attempt == 1


def test_a_live_view_shows_iterations_rate_and_loss_on_a_terminal() -> None:
    screen = on_a_terminal([SPOTMPI, "run", write_spec(fake_job(iterations=40, pause=0.03))])

    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert "training" in plain and re.search(r"\d+/40", plain) and "it/s" in plain and "ETA" in plain
    assert "loss" in plain and "hello from attempt 1" in plain and "succeeded" in plain


def test_ctrl_c_on_a_terminal_reaches_the_command_and_not_the_ranks() -> None:
    spec = write_spec(fake_job(iterations=5000, pause=0.02, every=100_000))

    def press(write: Callable[[bytes], int]) -> bool:
        if reader.every(Path("runs")) and iteration_of(only_run()) >= 3:
            write(b"\x03")
            return True
        return False

    screen = on_a_terminal([SPOTMPI, "run", spec], press)

    assert "stopping after a checkpoint" in screen
    state = reader.state(only_run())
    assert state.state == "stopped"
    kinds = [metric["kind"] for metric in reader.lines(only_run().metrics)]
    assert kinds[-1] == "checkpoint"
