"""Keys, signals and terminals that go away, while a command runs in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from spotmpi.runs import reader
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.remote import serve
from tests.command_line import SPOTMPI, invoke, spotmpi_process, start_process
from tests.contract import processes
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.tools import REPOSITORY
from tests.unit.cli.terminal import iteration_of, job, on_a_terminal, only_run, write_spec
from tests.unit.core.test_environment import OUTPUTS

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_reader_that_goes_away_gets_no_complaint() -> None:
    invoke("run", job("seq 20000"))

    result = subprocess.run(
        f"{SPOTMPI} logs {only_run().id} | head -1", shell=True, capture_output=True, text=True, executable="/bin/bash"
    )

    assert result.stdout == "1\n" and "Traceback" not in result.stderr and "Broken" not in result.stderr


@pytest.fixture(params=["", "PYTHONUNBUFFERED"])
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a command, without and with the variable that makes every print a write."""
    return {**os.environ, **({request.param: "1"} if request.param else {})}


@pytest.fixture
def recorded(own_folder: None) -> None:
    """A run that `list` has a row for."""
    Path("runs/run-1").mkdir(parents=True)
    Path("runs/run-1/events.jsonl").write_text('{"event": "submitted", "t": 1.0}\n')


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("words", ["list", "list --json", "--version", "image --help"])
def test_a_full_disk_below_the_output_is_one_line(words: str, variables: Mapping[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [SPOTMPI, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, env=variables
        )

    assert (result.returncode, result.stderr) == (1, "spotmpi: No space left on device; free some space\n")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("words", ["list", "list --json", "--version"])
def test_a_closed_output_is_one_line(words: str, variables: Mapping[str, str]) -> None:
    command = f"{SPOTMPI} {words} >&-"
    result = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, env=variables)

    assert (result.returncode, result.stderr) == (1, "spotmpi: Bad file descriptor; open stdout and stderr\n")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("words", ["list", "list --json"])
def test_a_pipe_that_nobody_reads_ends_the_command_without_a_word(words: str, variables: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    result = subprocess.run([SPOTMPI, *words.split()], stdout=writing, stderr=subprocess.PIPE, text=True, env=variables)

    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_wrong_input_keeps_its_exit_code_where_its_message_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([SPOTMPI, "status", "nosuch"], stdout=full, stderr=full).returncode == 2


@pytest.mark.parametrize(("words", "code"), [("list", 1), ("init", 2), ("run job.toml", 1)])
def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path, words: str, code: int) -> None:
    (tmp_path / "gone").mkdir()

    result = subprocess.run(
        f"cd {tmp_path}/gone && rmdir ../gone && {SPOTMPI} {words}", shell=True, capture_output=True, text=True
    )

    assert (result.returncode, result.stderr.count("\n")) == (code, 1) and "does not exist any more" in result.stderr


def test_closed_standard_streams_take_nothing_from_a_run() -> None:
    spec = job("sleep 0.3")

    assert subprocess.run(f"{SPOTMPI} run {spec} <&- 2>&-", shell=True).returncode == 0
    assert reader.state(only_run()).state == "succeeded"

    assert subprocess.run(f"{SPOTMPI} run {spec} <&- >&- 2>&-", shell=True).returncode == 1
    newest = reader.every(Path("runs"))[-1]
    wait_until(lambda: reader.state(newest).over)
    assert reader.state(newest).state == "succeeded"


def test_a_terminal_without_unicode_gets_the_rest_of_the_line() -> None:
    result = spotmpi_process(
        "run", job("echo caf\u00e9"), env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )

    assert result.stdout.splitlines()[0] == "caf?" and result.returncode == 0


def test_another_encoding_of_the_terminal_reads_and_writes_files_as_utf_8() -> None:
    spec = write_spec({"command": ["echo", "step 1 caf\u00e9"], "launcher": "none"})
    old = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    old |= {
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONWARNINGS": "error::EncodingWarning",
    }  # what none is named for fails

    results = [spotmpi_process(*words, env=old) for words in (("run", spec), ("report",), ("init", "new.toml"))]

    assert [each.returncode for each in results] == [0, 0, 0], [each.stderr for each in results]
    assert "caf\u00e9" in only_run().spec.read_text("utf-8")


def test_the_first_ctrl_c_stops_with_a_checkpoint() -> None:
    process = start_process("run", write_spec(fake_job(iterations=5000, pause=0.02, every=100_000)))
    paths = only_run()
    wait_until(lambda: iteration_of(paths) >= 3)

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=60)
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
    errors = process.stderr
    assert errors is not None
    wait_until(lambda: "Ctrl-C again kills" in errors.readline())  # two at once would be one signal
    assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "killing the run" in err
    assert reader.state(paths).state == "stopped"
    wait_until(lambda: not processes.of_run(paths.id))


def test_ctrl_c_while_following_logs_leaves_the_run_alone() -> None:
    run = invoke("run", write_spec(fake_job(iterations=5000, pause=0.02)), "--detach").stdout.strip()
    process = start_process("logs", "-f", run)
    wait_until(lambda: iteration_of(only_run()) >= 2)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello from attempt 1\n"

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert reader.state(only_run()).state == "running"
    assert json.loads(invoke("stop", run, "--json").stdout)["state"] == "stopped"


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


def test_a_command_without_iterations_waits_for_none_on_the_screen_once_it_has_ended() -> None:
    screen = on_a_terminal([SPOTMPI, "run", job("echo hi; sleep 0.2")])

    assert "\x1b[2K" in screen.rpartition("waiting for the first iteration")[2]  # that line is erased
    assert screen.rstrip().endswith("succeeded")


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
    assert "checkpoint" in [metric["kind"] for metric in reader.lines(only_run().metrics)]


SCALE = """
import sys
from spotmpi.cli.main import main
from spotmpi.environments import node_group_sizes as warm
from tests.cloud.account.remote import RemoteAccount
address = sys.argv.pop()
warm.open_account = lambda region: RemoteAccount(address)
main()
"""


@pytest.mark.parametrize("is_resized", [False, True], ids=["before", "after"])
def test_aws_has_the_end_of_warm_nodes_when_the_command_is_killed_before_or_after_the_resize(
    account: FakeAccount, tmp_path: Path, is_resized: bool
) -> None:
    (tmp_path / "lab.json").write_text(json.dumps(OUTPUTS))
    terminals = queue.Queue[subprocess.Popen[bytes]]()
    account.autoscaling.add("eks-lab-1", {CLUSTER_TAG: "spotmpi-lab", GROUP_TAG: "g4dn"}, most=3)

    def killed(region: str, request: Mapping[str, Any]) -> Any:
        if is_resized:
            account.autoscaling.update_auto_scaling_group(region, request)
        os.kill(terminals.get().pid, signal.SIGKILL)
        return {}

    before = datetime.now(UTC)
    account.answers["UpdateAutoScalingGroup"] = killed
    with serve({"aws": account.answer}) as address:
        words = ["scale", "g4dn", "2", "--for", "30m", "--on", str(tmp_path / "lab.json"), address]
        terminal = subprocess.Popen(
            [sys.executable, "-c", SCALE, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
        )
        terminals.put(terminal)
        assert terminal.wait(60) == -signal.SIGKILL

    assert account.autoscaling.groups["eks-lab-1"]["MinSize"] == (2 if is_resized else 0)
    end = account.autoscaling.scheduled_actions["eks-lab-1"]
    assert (end["ScheduledActionName"], end["MinSize"]) == ("spotmpi-give-back-eks-lab-1", 0)
    reservation = timedelta(minutes=30)
    assert before + reservation <= datetime.fromisoformat(end["StartTime"]) <= datetime.now(UTC) + reservation
