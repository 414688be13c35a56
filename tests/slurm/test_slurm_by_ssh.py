"""Runs on Slurm by way of a login node, from a machine that shares no file system with the cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.slurm.backend import SlurmBackend
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.events import Event
from tests.command_line import spotmpi_process
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import command, iterations, kinds, texts
from tests.contract.fake_program import fake_job
from tests.testbed.login_node import HOST, login_node
from tests.testbed.slurm import CLOSED, Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


@pytest.fixture
def home(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home on the login node; here there is neither a command of Slurm's nor its configuration."""
    home = tmp_path / "home of me"
    monkeypatch.setenv("SPOTMPI_CACHE", f"/tmp/spotmpi-{os.getpid()}")
    monkeypatch.delenv("SLURM_CONF")
    variables = {"SQUEUE_STATES": "TIMEOUT", "SQUEUE_PARTITION": CLOSED, "SQUEUE_FORMAT2": "jobid"}  # as of ~/.bashrc
    with login_node(tmp_path / "login", home, {**slurm.environment, **variables}) as programs:
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield home
        end_connection()


def end_connection() -> None:
    subprocess.run(["ssh", "-o", f"ControlPath=/tmp/spotmpi-{os.getpid()}/ssh-%C", "-O", "exit", HOST], check=False)


@pytest.fixture
def remote(home: Path, tmp_path: Path) -> BackendHarness:
    return BackendHarness(SlurmBackend(tmp_path / "copies", HOST, look=0.3))


def test_a_run_by_ssh_is_followed_stopped_resumed_and_pulled(
    remote: BackendHarness, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "data.txt").write_text("mine\n")
    job = fake_job(iterations=600, pause=0.05, every=1000, code=str(tmp_path / "code"), nodes=2)
    run = remote.submit(job)
    remote.wait_for_iteration(run, 2)
    remote.backend.stop(run, "enough", now=False)
    stopped = remote.wait_for_state(run, "stopped")
    remote.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    events = remote.events(run)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert iterations(events) == list(range(1, 601))
    assert stopped.reason == "enough"
    assert [event.to_json() for event in remote.events(run)] == [event.to_json() for event in events]
    copy = tmp_path / "copies" / run
    assert not (copy / "checkpoints").exists()
    folder = remote.backend.pull(run, lambda text: None)
    assert json.loads((folder / "checkpoints" / "fake.json").read_text()) == stopped.iteration
    assert (home / "spotmpi" / "runs" / run / "slurm" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert not list(copy.rglob("key.pem"))


@pytest.mark.nightly("a double of ssh finds no login node by day")
def test_a_follower_goes_on_after_the_login_node_was_away(remote: BackendHarness, tmp_path: Path) -> None:
    ssh = tmp_path / "login" / "bin" / "ssh"
    program = ssh.read_text()
    run = remote.submit(fake_job(iterations=150, pause=0.05, every=50))
    events: list[Event] = []
    for event in remote.backend.events(run, follow=True):
        events.append(event)
        if event.kind == record.METRIC and event.values.get("iteration") == 5:
            end_connection()
            ssh.write_text("#!/bin/sh\necho Connection refused >&2\nexit 255\n")
        elif event.kind == record.WAITING and "Connection refused" in str(event.reason):
            ssh.write_text(program)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert iterations(events) == list(range(1, 151))
    assert sum("Connection refused" in str(event.reason) for event in events) == 1


@pytest.mark.nightly("the script that passes them on is compared with the plan by day")
def test_variables_of_the_terminal_are_passed_on(remote: BackendHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "se'cret $HOME")
    events = remote.all_events(command("sh", "-c", 'echo "$MY_TOKEN"', env_passthrough=["MY_TOKEN"]))

    assert texts(events) == ["se'cret $HOME"]


@pytest.mark.nightly("follows the way of the run that is stopped and resumed")
def test_another_terminal_finds_the_login_node_in_the_record(remote: BackendHarness, tmp_path: Path) -> None:
    run = remote.submit(command("sleep", "60"))
    remote.wait_for_state(run, "running")
    shell = remote.backend.shell(run, COORDINATOR)

    stopped = spotmpi_process("stop", run, "--now", "--runs", str(tmp_path / "copies"))

    assert stopped.returncode == 0, stopped.stderr
    assert remote.wait_for_state(run, "stopped").state == "stopped"
    assert [state.id for state in remote.backend.list()] == [run]
    assert shell[0] == "ssh" and "-t" in shell and "--pty /bin/sh" in shell[-1]


def test_an_image_is_refused_since_nobody_installs_it_there(remote: BackendHarness) -> None:
    with pytest.raises(InputError, match="image = 'chainermn': is not installed over ssh"):
        remote.submit({"image": "chainermn", "program": "digits"})


def test_a_login_node_that_does_not_answer_is_an_error(home: Path, tmp_path: Path) -> None:
    backend = SlurmBackend(tmp_path / "copies", "nobody@127.0.0.1")
    with pytest.raises(SpotmpiError, match="cannot reach the login node"):
        BackendHarness(backend).submit(command("true"))
