"""Records of runs that ended long ago are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from tests import nfs


def test_a_record_on_nfs_is_deleted_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the lock, which is held meanwhile, kept the folder: without its files, it counted as kept."""
    runs, messages = tmp_path / "runs", list[str]()
    target = Target(runs_folder=runs)
    run = spotmpi.run(["true"], on=target)
    nfs.keep_open_files(monkeypatch)
    assert [each.id for each in spotmpi.clean(0, True, target, messages.append)] == [run.id]
    assert messages == [] and list(runs.iterdir()) == []
