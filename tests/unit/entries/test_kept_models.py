"""`keep` in a spec: the command that sees the end keeps the model, or the next one does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import spotmpi
from spotmpi.core.names import RunPaths
from spotmpi.entries.store import Store
from tests.command_line import invoke

pytest.importorskip("numpy")
PROGRAM = """
import sys
import numpy as np
import spotmpi

spotmpi.checkpoint.save(3, {"w": np.full(2, 0.5)}, now=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose command writes a checkpoint and ends with its argument."""
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    command = json.dumps([sys.executable, "train.py", "0"])
    (tmp_path / "job.toml").write_text(
        f'command = {command}\nlauncher = "none"\nkeep = "small"\nprice = 3600.0\n[limits]\nfailures = 0\n'
    )
    return tmp_path / "job.toml"


def test_the_model_of_a_run_that_succeeds_is_kept_with_the_price_of_its_spec(spec: Path) -> None:
    output = invoke("run", str(spec))
    assert output.returncode == 0, output.stderr
    assert "the model is kept as small:1: " in output.stderr
    manifest = Store().find("models:small:1")
    assert sorted(file.path for file in manifest.files) == ["manifest.json", "state.safetensors"]
    # A dollar a second: as long as the attempt took.
    assert manifest.run and manifest.cost == pytest.approx(spotmpi.run_cost(manifest.run).dollars) != 0
    said: list[str] = []
    for state in (spotmpi.status(manifest.run, say=said.append), *spotmpi.list_runs(say=said.append)):
        assert state.state == "succeeded"
    assert said == [] and [each.title for each in Store().list()] == ["small:1"]


@pytest.mark.parametrize("command", [["status"], ["list"], ["logs", "-f"], ["models", "list"], ["models", "pull"]])
def test_that_of_a_run_that_ended_without_a_terminal_is_kept_by_the_next_command(
    spec: Path, command: list[str], tmp_path: Path
) -> None:
    state = spotmpi.run(spec, detach=True)
    for _ in spotmpi.logs(state.id, follow=True):
        pass
    assert Store().list() == []
    argument = {"status": [state.id], "logs": [state.id], "models": ["small"]}.get(command[0], [])
    output = invoke(*command, *argument)
    assert output.returncode == 0 and "the model is kept as small:1" in output.stderr, output.stderr
    assert [each.title for each in Store().list()] == ["small:1"]
    assert json.loads(RunPaths(Path(state.folder)).keep.read_text())["kept"] == "small:1"


def test_a_run_that_fails_keeps_nothing(spec: Path) -> None:
    output = invoke("run", str(spec), "--set", f'command=["{sys.executable}", "train.py", "1"]')
    assert output.returncode == 1 and "kept" not in output.stderr
    assert invoke("models", "list").returncode == 0 and Store().list() == []


def test_a_model_that_cannot_be_kept_leaves_the_run_succeeded_and_says_what_to_do(spec: Path) -> None:
    output = invoke("run", str(spec), "--set", f'command=["{sys.executable}", "-c", ""]')
    assert output.returncode == 0
    lines = [line for line in output.stderr.splitlines() if "is not kept" in line]
    assert len(lines) == 1 and "has no complete checkpoint in" in lines[0] and "`spotmpi models keep " in lines[0]


def test_the_store_is_that_of_the_submission(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    state = spotmpi.run(spec, detach=True)
    for _ in spotmpi.logs(state.id, follow=True):
        pass
    monkeypatch.delenv("SPOTMPI_STORE")
    spotmpi.status(state.id)
    assert [each.title for each in Store(str(tmp_path / "other")).list()] == ["small:1"] and Store().list() == []


def test_a_damaged_request_is_one_line(spec: Path) -> None:
    state = spotmpi.run(spec, detach=True)
    for _ in spotmpi.logs(state.id, follow=True):
        pass
    RunPaths(Path(state.folder)).keep.write_text("{}")
    output = invoke("status", state.id)
    assert output.returncode == 0 and "is not kept" in output.stderr and "`spotmpi models keep" in output.stderr
    shutil.rmtree(state.folder)


def test_names_and_pools_that_do_not_fit_are_problems(spec: Path) -> None:
    output = invoke("run", str(spec), "--set", 'keep="a:b"')
    assert output.returncode == 2 and "keep = 'a:b': use up to 100 letters" in output.stderr
    output = invoke("run", "--set", 'keep="a"', "--set", "launcher=pool", "--set", "pool.workers=1", "--", "true")
    assert output.returncode == 2 and "keep = 'a': a pool writes no checkpoints; remove it" in output.stderr
