"""A checkpoint is whole or does not exist, whatever happens while it is written or afterwards.

Two runs may share a folder: what one has not finished, the other leaves alone.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.agent import protocol
from spotmpi.programs.checkpoint import (
    Checkpoints,
    TrainingIdentity,
    TrainingProgress,
    model_fingerprint,
    parameters_checksum,
)
from spotmpi.programs.exits import Failed, Fatal
from tests.transient_errors import TransientErrors

OURS = TrainingIdentity("numpy/line", "model-a", "data-a", 0)


def state(value: float) -> dict[str, Any]:
    return {"parameters//weight": np.full((3, 2), value, np.float32), "optimizer/t": np.array(7)}


def progress(iteration: int) -> TrainingProgress:
    return TrainingProgress(iteration, iteration * 8, 2, 8, {"loss": 0.5})


def checkpoints(folder: Path, keep: int = 3, identity: TrainingIdentity = OURS) -> Checkpoints:
    checkpoints_ = Checkpoints(folder, keep, identity)
    checkpoints_.prepare()
    return checkpoints_


def newest_iteration(folder: Path) -> int:
    checkpoint = checkpoints(folder).newest()
    assert checkpoint is not None
    return checkpoint.progress.iteration


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "it's a new" / '"folder"').write(progress(5), state(1.5), "timer")

    checkpoint = checkpoints(path.parent).newest()

    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.progress) == (path, progress(5))
    assert checkpoint.state.keys() == state(1.5).keys()
    assert all(np.array_equal(checkpoint.state[name], value) for name, value in state(1.5).items())


def test_the_manifest_has_the_progress_and_the_files(tmp_path: Path) -> None:
    path = checkpoints(tmp_path).write(progress(5), state(0), "notice")

    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["iteration"], manifest["position"], manifest["world_size"]) == (5, 40, 2)
    assert (manifest["reason"], manifest["random"]["seed"]) == ("notice", 0)
    assert manifest["files"]["state.safetensors"]["bytes"] == (path / "state.safetensors").stat().st_size


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    ours = checkpoints(tmp_path, keep=2)
    for iteration in (9, 10, 11, 100):
        ours.write(progress(iteration), state(iteration), "timer")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000000011", "iteration-000000100"]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {
    "state cut short": ("state.safetensors", lambda whole: whole[: len(whole) // 2]),
    "state with a flipped bit": (
        "state.safetensors",
        lambda whole: whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
    ),
    "state missing": ("state.safetensors", None),
    "manifest missing": ("manifest.json", None),
    "manifest cut short": ("manifest.json", lambda whole: b'{"format": 1, "iteration"'),
    "manifest without fields": ("manifest.json", lambda whole: b'{"format": 1}'),
}


def damage(checkpoint: Path, kind: str) -> None:
    name, change = DAMAGES[kind]
    path = checkpoint / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_renamed_with_a_line_and_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    ours = checkpoints(tmp_path, keep=1)
    ours.write(progress(5), state(5), "timer")
    damage(checkpoints(tmp_path, keep=2).write(progress(6), state(6), "timer"), kind)

    assert newest_iteration(tmp_path) == 5
    message = "checkpoint iteration-000000006 is damaged and was renamed to damaged-iteration-000000006-"
    assert message in capsys.readouterr().err
    assert len(list(tmp_path.glob("damaged-iteration-000000006-*"))) == 1
    ours.write(progress(5), state(5), "timer")
    assert (tmp_path / "iteration-000000005" / "manifest.json").exists(), "a damaged newer one must not displace it"


def test_nothing_whole_means_a_start_from_zero(tmp_path: Path) -> None:
    damage(checkpoints(tmp_path).write(progress(5), state(5), "timer"), "state cut short")

    assert checkpoints(tmp_path).newest() is None


@pytest.mark.parametrize("run", [None, "digits-1"])
def test_the_rest_of_an_interrupted_write_is_removed_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run: str | None
) -> None:
    if run:
        monkeypatch.setenv(protocol.ENV_RUN, run)
    whole = checkpoints(tmp_path).write(progress(5), state(5), "timer")
    leftover = f".writing-000000006-{run or 'by-hand'}-123"
    shutil.copytree(whole, tmp_path / leftover)
    (tmp_path / f".writing-probe-{run or 'by-hand'}-7").mkdir()

    assert newest_iteration(tmp_path) == 5
    assert f"incomplete checkpoint {leftover} removed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [whole.name]


@pytest.mark.parametrize(
    ("change", "value"), [("program", "numpy/curve"), ("model", "model-b"), ("data", "data-b"), ("seed", 1)]
)
def test_a_checkpoint_of_something_else_is_refused_and_stays(tmp_path: Path, change: str, value: Any) -> None:
    path = checkpoints(tmp_path).write(progress(5), state(5), "timer")
    changed: dict[str, Any] = {change: value}
    other = checkpoints(tmp_path, identity=replace(OURS, **changed))

    with pytest.raises(Fatal, match=rf"belongs to {change} .* \(not {value}\)"):
        other.newest()

    assert (path / "manifest.json").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(Fatal, match=r"cannot be written to .*choose another --checkpoint-path"):
        checkpoints(tmp_path / "file" / "checkpoints")


FULL = """
import resource, signal
import numpy as np
from pathlib import Path
from spotmpi.programs.checkpoint import Checkpoints, TrainingIdentity, TrainingProgress

ours = Checkpoints(Path({folder!r}), 1, TrainingIdentity("p", "m", "d", 0))
ours.prepare()
ours.write(TrainingProgress(1, 1, 1, 1), {{"parameters/a": np.zeros(10)}}, "timer")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    ours.write(TrainingProgress(2, 2, 1, 1), {{"parameters/a": np.zeros(10_000)}}, "timer")
except OSError as problem:
    print(problem.strerror)
print(ours.newest().progress.iteration)
"""


def test_a_write_that_the_system_refuses_leaves_the_earlier_one_and_no_rest(
    tmp_path: Path, python_process: Callable[..., Any]
) -> None:
    result = python_process(FULL.format(folder=str(tmp_path)))

    assert result.stdout.split("\n") == ["File too large", "1", ""], result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000000001"]


def test_an_existing_checkpoint_of_the_same_iteration_is_not_written_again(tmp_path: Path) -> None:
    ours = checkpoints(tmp_path)
    first = ours.write(progress(5), state(5), "timer")
    inode = first.stat().st_ino

    assert ours.write(progress(5), state(5), "end") == first
    assert first.stat().st_ino == inode


def test_the_checksum_depends_on_every_parameter_and_on_nothing_else() -> None:
    same, changed = state(1), state(1)
    same["optimizer/t"] = np.array(8)
    changed["parameters//weight"][2, 1] = np.nextafter(np.float32(1), np.float32(2))
    renamed = {name.replace("weight", "bias"): value for name, value in state(1).items()}

    assert parameters_checksum(same) == parameters_checksum(state(1))
    assert parameters_checksum(changed) != parameters_checksum(state(1))
    assert parameters_checksum(renamed) != parameters_checksum(state(1))


def test_the_model_fingerprint_knows_shapes_and_neither_values_nor_state_that_an_optimizer_adds_later() -> None:
    wider = {**state(1), "parameters//weight": np.ones((3, 3), np.float32)}
    later = {**state(1), "optimizer/rule:v": np.zeros(3)}

    assert model_fingerprint(state(1)) == model_fingerprint(state(2)) == model_fingerprint(later)
    assert model_fingerprint(wider) != model_fingerprint(state(1))


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> TransientErrors:
    """What calls of this process meet; nothing yet."""
    return TransientErrors(monkeypatch.setattr)


@pytest.mark.parametrize(
    ("call", "name", "error"),
    [
        ("read", "*/manifest.json", errno.ESTALE),
        ("read", "*/state.safetensors", errno.EIO),
        ("read", "*/state.safetensors", errno.ETIMEDOUT),
        ("open", "*/manifest.json", errno.EMFILE),
        ("open", "*/state.safetensors", errno.EACCES),
        ("stat", "*/state.safetensors", errno.ESTALE),
        ("list", "*", errno.EIO),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_not_damaged_and_the_attempt_ends(
    tmp_path: Path, errors: TransientErrors, call: str, name: str, error: int
) -> None:
    for iteration in (4, 5, 6):
        checkpoints(tmp_path).write(progress(iteration), state(iteration), "timer")
    ours = checkpoints(tmp_path)
    errors.add(call, name, error)

    with pytest.raises(Failed, match="the next attempt reads them again"):
        ours.newest()

    assert newest_iteration(tmp_path) == 6, "the next attempt goes on from the newest one"
    assert not list(tmp_path.glob("damaged-*"))


@pytest.mark.parametrize(("error", "ending"), [(errno.ESTALE, Failed), (errno.EIO, Failed), (errno.EROFS, Fatal)])
def test_a_folder_that_fails_for_a_moment_ends_the_attempt_and_not_the_run(
    tmp_path: Path, errors: TransientErrors, error: int, ending: type[Exception]
) -> None:
    errors.add("mkdir", "*/.writing-probe*", error)

    with pytest.raises(ending, match="checkpoints cannot be written to"):
        checkpoints(tmp_path)

    checkpoints(tmp_path)


def partial_write(folder: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a checkpoint in the middle of its write: what `os.fsync` does not come back from."""

    def end_process(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setenv(protocol.ENV_RUN, run)
        cut.setattr(os, "fsync", end_process)
        before = set(folder.iterdir())
        with pytest.raises(KeyboardInterrupt):
            checkpoints(folder).write(progress(6), state(6), "timer")
    (leftover,) = set(folder.iterdir()) - before
    return leftover


@pytest.mark.parametrize("other", ["digits-2", "digits", "x-digits-1", "digits-1-1", "digits.1"])
def test_an_unfinished_write_of_another_run_stays_in_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    ours, theirs = partial_write(tmp_path, "digits-1", monkeypatch), partial_write(tmp_path, other, monkeypatch)
    (tmp_path / f".writing-probe-{other}-7").mkdir()
    monkeypatch.setenv(protocol.ENV_RUN, "digits-1")

    checkpoints(tmp_path)

    assert theirs.exists() and (tmp_path / f".writing-probe-{other}-7").exists()
    assert not ours.exists()


def test_a_folder_that_another_process_removes_meanwhile_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = partial_write(tmp_path, "digits-1", monkeypatch)
    monkeypatch.setenv(protocol.ENV_RUN, "digits-1")
    rmtree = shutil.rmtree

    def finish_first(path: Path, *more: Any, **options: Any) -> None:
        leftover.rename(tmp_path / "iteration-000000006")  # as a rank does that is about to be killed
        rmtree(path, *more, **options)

    monkeypatch.setattr(shutil, "rmtree", finish_first)

    checkpoints(tmp_path)

    assert (tmp_path / "iteration-000000006" / "state.safetensors").exists()
    assert "removed" not in capsys.readouterr().err
