"""`keep` in a spec: the command that sees the end keeps the model, or the next one does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import spotmpi
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.entries.store import Store
from tests.command_line import invoke

pytest.importorskip("numpy")
PROGRAM = """
import sys
import numpy as np
import spotmpi

model = spotmpi.checkpoint.read()
w = np.full(2, 0.5) if model is None else model["w"] + 1
spotmpi.checkpoint.save(3, {"w": w}, now=True)
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
    for state in (spotmpi.status(manifest.run, echo=said.append), *spotmpi.list_runs(echo=said.append)):
        assert state.state == "succeeded"
    assert said == [] and [each.title for each in Store().list()] == ["small:1"]


def test_that_of_a_run_that_ended_without_a_terminal_is_kept_by_the_next_command(spec: Path) -> None:
    state = spotmpi.run(spec, detach=True)
    for _ in spotmpi.logs(state.id, follow=True):
        pass
    request = RunPaths(Path(state.folder)).keep
    before = request.read_text()
    for command in (["status", state.id], ["list"], ["logs", "-f", state.id], ["models", "list"], ["models", "pull"]):
        request.write_text(before)
        assert Store().list() == []
        output = invoke(*command, *(["small"] if command[-1] == "pull" else []))
        assert output.returncode == 0 and "the model is kept as small:1" in output.stderr, (command, output.stderr)
        assert [each.title for each in Store().list()] == ["small:1"]
        assert json.loads(request.read_text())["kept"] == "small:1"
        shutil.rmtree(Store().storage.url)


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
    output = invoke("run", "--set", 'keep="a"', "--set", "launcher=pool", "--set", "pool.count=1", "--", "true")
    assert output.returncode == 2 and "keep = 'a': a pool writes no checkpoints; remove it" in output.stderr


def test_a_run_starts_from_a_model_which_its_record_pins_and_its_own_model_names_as_a_parent(spec: Path) -> None:
    spotmpi.run(spec)
    spotmpi.models.promote("small:1", "prod")
    state = spotmpi.run(spec, ["init=models:small:prod"])
    first, second = (spotmpi.models.find(name) for name in ("small:1", "small:2"))
    work = json.loads((Path(state.folder) / "plan.yaml").read_text())["work"]
    assert work["entries"] == [f"models:small@{first.key}"] and work["init"] == first.path
    assert spotmpi.checkpoint.read(second.path)["w"].tolist() == [1.5, 1.5]
    assert second.parents == (first.manifest.reference,)
    lines = invoke("why", "models:small").stdout.splitlines()
    assert [line.partition(",")[0].strip("├└─│ ") for line in lines if " model " in f" {line}" or "run " in line] == [
        f"model {second.manifest}",
        f"run {state.id}",
        f"model {first.manifest}",
        f"run {first.manifest.run}",
    ]
    refused = invoke("models", "rm", "small:1")
    assert refused.returncode == 1 and f"{first.manifest} is read by run {state.id}" in refused.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("models:small:beta", "model = 'models:small:beta': is not in the store"),
        ("models:absent", "model = 'models:absent': is not in the store"),
        ("absent", "init = 'absent': not a readable folder; check the path, or name a model: models:NAME"),
    ],
)
def test_an_unknown_model_to_start_from_is_one_line(spec: Path, value: str, text: str) -> None:
    spotmpi.run(spec)
    output = invoke("run", str(spec), "--set", f"init={value}")
    assert output.returncode == 2 and len(output.stderr.splitlines()) == 1 and text in output.stderr


def test_a_model_that_no_longer_loads_is_one_line_with_the_remedy(spec: Path) -> None:
    spotmpi.run(spec)
    found = spotmpi.models.find("small")
    file = Path(found.path) / "state.safetensors"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1])
    state = spotmpi.run(spec, ["init=models:small", "limits.failures=3"])
    assert (state.state, state.attempt) == ("failed", 1), "another attempt would read the same files"
    assert state.reason and state.reason.startswith(
        f"the model in {found.path} cannot be loaded: state.safetensors has "
    )
    assert "; `spotmpi models verify` says whether the model is damaged" in state.reason
    assert state.reason in invoke("logs", state.id).stdout.splitlines()[-1]
    assert invoke("models", "verify").returncode == 1


def test_a_program_may_do_without_a_model_that_no_longer_loads(spec: Path, tmp_path: Path) -> None:
    spotmpi.run(spec)
    Path(spotmpi.models.find("small").path, "state.safetensors").unlink()
    (tmp_path / "train.py").write_text(
        "import spotmpi\ntry:\n    spotmpi.checkpoint.read()\nexcept ValueError:\n    print('from the start')\n"
    )
    state = spotmpi.run(spec, ["init=models:small"])
    assert state.state == "succeeded", state.reason


def test_a_model_behind_a_url_is_copied_once_to_this_machine_and_compared(
    spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/a store")
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    spotmpi.run(spec)
    first = spotmpi.models.find("small")
    with pytest.raises(
        SpotmpiError, match=r"^init is behind a URL and not in .* yet, which .*: `spotmpi run` copies it"
    ):
        spotmpi.plan_run(spec, ["init=models:small"])
    state = spotmpi.run(spec, ["init=models:small"])
    line = "copying to this machine: small:1, 2 files, "
    assert state.state == "succeeded" and capfd.readouterr().err.count(line) == 1
    second = spotmpi.models.find("small")
    assert second.manifest.parents == (first.manifest.reference,)
    tree = spotmpi.trace(f"models:{second}")
    assert [node.name for node in tree.walk() if node.what == "model"] == [
        str(each.manifest) for each in (second, first)
    ]
    assert spotmpi.run(spec, ["init=models:small:1"]).state == "succeeded" and line not in capfd.readouterr().err
    shutil.rmtree(tmp_path / "cache" / "stores")
    spotmpi.run(spec, ["init=models:small:1", 'command=["false"]'])
    (run,) = [each.id for each in spotmpi.list_runs() if each.state == "failed"]
    shutil.rmtree(tmp_path / "cache" / "stores")
    assert spotmpi.resume(run, [f'command=["{sys.executable}", "train.py", "0"]']).state == "succeeded"
    assert spotmpi.models.find("small").manifest.parents == (first.manifest.reference,)


def test_a_model_behind_a_url_that_is_damaged_or_too_large_is_one_line_and_no_copy(
    spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/store")
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    spotmpi.run(spec)
    storage, found = Store().storage, spotmpi.models.find("small").manifest
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 7, 3))
        with pytest.raises(
            SpotmpiError, match=r"^small:1 cannot be copied to .*: it has \d+ bytes, and 3 are free there"
        ):
            spotmpi.run(spec, ["init=models:small"])
    storage.write(f"models/small/{found.key}/files/state.safetensors", b"x" * 90)
    with pytest.raises(SpotmpiError, match=r"^small:1 is damaged, state.safetensors: `spotmpi models verify small:1`"):
        spotmpi.run(spec, ["init=models:small"])
    assert [path for path in (tmp_path / "cache" / "stores").rglob("*") if path.is_file()] == []
    storage.remove(f"models/small/{found.key}")
    assert len(spotmpi.list_runs()) == 1


def test_a_model_in_a_file_system_behind_a_url_is_read_there(spec: Path, tmp_path: Path) -> None:
    spotmpi.run(spec)
    place = spotmpi.models.find("small").path
    assert spotmpi.run(spec, [f'init="file://{place}"']).state == "succeeded"
    assert not (tmp_path / "cache" / "stores").exists()
