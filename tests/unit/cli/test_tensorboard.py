"""`spotmpi tensorboard`: the program is started on the run's events, which follow a run that is elsewhere."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import runs
from spotmpi.backends.targets import Target
from spotmpi.cli import tensorboard
from spotmpi.runs.reader import RunState
from tests.command_line import invoke
from tests.contract.processes import wait_until


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tensorboard that tells its arguments, lives for a moment and ends with 3."""
    output = tmp_path / "output"
    script = tmp_path / "bin" / "tensorboard"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" > {output}\nsleep 1\nexit 3\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return output


def test_tensorboard_starts_on_the_runs_events_and_its_exit_status_is_returned(program: Path, tmp_path: Path) -> None:
    state = runs.run({"command": ["true"], "launcher": "none"}, on=Target(runs_folder=tmp_path / "runs"))
    code, _, output = invoke("tensorboard", state.id, "--port", "6007", "--runs", str(tmp_path / "runs"))
    assert code == 3
    assert program.read_text() == f"--logdir {state.folder}/tensorboard --port 6007\n"
    assert "http://localhost:6007" in output


def test_new_events_are_written_until_the_run_is_over(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RunState("digits-1", str(tmp_path), "digits", "running")
    states = [state, state, replace(state, state="succeeded")]
    pulled: list[str | None] = []

    def pull(run: str, where: Any, echo: Any, part: str | None) -> Path:
        pulled.append(part)
        return tmp_path

    monkeypatch.setattr(tensorboard, "REFRESH", 0.05)
    monkeypatch.setattr(runs, "pull", pull)
    monkeypatch.setattr(runs, "status", lambda run, where: states.pop(0))
    code, _, _ = invoke("tensorboard", "digits-1")
    assert code == 3
    assert pulled == ["tensorboard"] * 4 and not states  # at the start, twice while it ran, and once at its end


@pytest.mark.parametrize(
    ("error", "code"), [(OSError(errno.ENOSPC, "No space left on device"), 1), (KeyboardInterrupt(), 0)]
)
def test_tensorboard_ends_with_the_command_however_that_ends(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """It went on on a full disk, and nobody waited for it."""
    script = tmp_path / "bin" / "tensorboard"
    script.write_text(f"#!/bin/sh\necho $$ > {program}.part; mv {program}.part {program}; exec sleep 60\n")

    def fail(run: str, where: Any) -> RunState:
        wait_until(program.exists)
        raise error

    monkeypatch.setattr(tensorboard, "REFRESH", 0.05)
    monkeypatch.setattr(runs, "pull", lambda run, where, echo, part: tmp_path)
    monkeypatch.setattr(runs, "status", fail)
    assert invoke("tensorboard", "digits-1").returncode == code
    with pytest.raises(ProcessLookupError):
        os.kill(int(program.read_text()), 0)


def test_a_missing_tensorboard_is_one_line_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, output = invoke("tensorboard", "digits-1")
    assert code == 1 and "command not found: tensorboard; install it" in output
