"""The CI commands with the real Pulumi CLI: what it says is what the scripts listen for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from infra.ci import commands
from tests.tools import REPOSITORY, bin_folder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty state in a folder, with the pinned CLI on PATH and moto's account to work in."""
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(bin_folder("pulumi")), os.environ["PATH"]]))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{folder}")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "known")
    monkeypatch.setenv("SPOTMPI_ACCOUNT", "123456789012")
    monkeypatch.setenv("SPOTMPI_ACCESS", "198.51.100.7/32")
    with mock_aws():
        yield folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's file and its stacks; destroying runs no program."""
    folder = tmp_path / "project"
    shutil.copytree(REPOSITORY / "stacks", folder / "stacks")
    shutil.copy(REPOSITORY / "Pulumi.yaml", folder)
    (folder / "infra").mkdir()
    return folder


def run_pulumi(project: Path, *arguments: str) -> None:
    """Run a command on the stack lab."""
    command = ["pulumi", *arguments, "--stack", "lab", "--non-interactive"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


def test_a_stack_without_state_is_recognized_by_the_clis_message(
    state: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main("destroy", ["lab"], project) == 1
    assert f"no state of stack lab in file://{state}" in capsys.readouterr().err
    assert commands.main("destroy", ["lab", "--if-built"], project) == 0


@pytest.fixture
def lock(state: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of a command that was killed."""
    run_pulumi(project, "stack", "select", "--create")
    lock = state / ".pulumi" / "locks" / "organization" / "spotmpi" / "lab" / "left-behind.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps({"pid": 1, "username": "a", "hostname": "b", "timestamp": "2026-11-21T08:00:00Z"}))
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    return lock


def test_an_old_lock_is_cancelled_at_night(lock: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main("destroy", ["lab", "--cancel-locks-after", "120"], project) == 0
    assert "cancelling the lock of 2026-11-21T08:00:00+00:00" in capsys.readouterr().err
    assert not lock.exists()


# As a crash or a full disk leaves a file: cut off, without content, or zeros.
@pytest.mark.parametrize("content", ["", '{"pid": 1, "us', "\0" * 64, "{}"], ids=["empty", "half", "zeros", "{}"])
def test_a_lock_that_can_not_be_read_is_cancelled_at_night_by_the_age_of_its_file(
    lock: Path, project: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """It names no time, so Pulumi and `spotmpi down` know none."""
    lock.write_text(content)
    night = ("destroy", ["lab", "--cancel-locks-after", "120"], project)
    assert commands.main(*night) == 1
    remedy = "if no update of it is running, `pulumi cancel --yes --stack lab`"
    assert f"error: a lock of lab is damaged: {remedy}\n" in capsys.readouterr().err and lock.exists()

    os.utime(lock, (0, lock.stat().st_mtime - 121 * 60))
    assert commands.main(*night) == 0
    assert "no job runs for 121 minutes" in capsys.readouterr().err and not lock.exists()


def test_a_stale_lock_is_recognized_by_the_clis_message_and_released_by_the_remedy(
    lock: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main("destroy", ["lab"], project) == 1
    assert "pulumi cancel --yes --stack lab" in capsys.readouterr().err
    run_pulumi(project, "cancel", "--yes")
    assert not lock.exists()
    assert commands.main("destroy", ["lab"], project) == 0
    assert "locked" not in capsys.readouterr().err
