"""Two runs with one `checkpoint.path`: what one has not finished, the other leaves alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from spotmpi.agent import protocol
from tests.programs.test_programs_checkpoint import checkpoints, progress, state


def partial_metric(folder: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a checkpoint in the middle of its write: what `os.fsync` does not come back from."""

    class ProcessEnd(BaseException):
        pass

    def never(descriptor: int) -> None:
        raise ProcessEnd

    with monkeypatch.context() as cut:
        cut.setenv(protocol.ENV_RUN, run)
        cut.setattr(os, "fsync", never)
        before = set(folder.iterdir())
        with pytest.raises(ProcessEnd):
            checkpoints(folder).write(progress(6), state(6), "timer")
    (leftover,) = set(folder.iterdir()) - before
    return leftover


@pytest.mark.parametrize("other", ["digits-2", "digits", "x-digits-1", "digits-1-1", "digits.1"])
def test_an_unfinished_write_of_another_run_stays_in_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    ours, theirs = partial_metric(tmp_path, "digits-1", monkeypatch), partial_metric(tmp_path, other, monkeypatch)
    (tmp_path / f".writing-probe-{other}-7").mkdir()
    monkeypatch.setenv(protocol.ENV_RUN, "digits-1")

    checkpoints(tmp_path)

    assert theirs.exists() and (tmp_path / f".writing-probe-{other}-7").exists()
    assert not ours.exists()


def test_a_folder_that_another_process_removes_meanwhile_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = partial_metric(tmp_path, "digits-1", monkeypatch)
    monkeypatch.setenv(protocol.ENV_RUN, "digits-1")
    rmtree = shutil.rmtree

    def finish_first(path: Path, *more: object, **options: bool) -> None:
        leftover.rename(tmp_path / "iteration-000000006")  # as a rank does that is about to be killed
        rmtree(path, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "rmtree", finish_first)

    checkpoints(tmp_path)

    assert (tmp_path / "iteration-000000006" / "state.npz").exists()
    assert "removed" not in capsys.readouterr().err
