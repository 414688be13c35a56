"""Files are replaced whole or not at all, and plans and records of older versions are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.files import remove_folder, write_atomically
from spotmpi.agent.schema import read_attempt, read_object
from spotmpi.agent.store import remove_entry
from tests import nfs

LIMITS = {"start": 60.0, "run": None, "no_progress": None, "failures": 1, "interruptions": 2}
OLD = {"started": 1.0, "cause": "failure", "last_iteration": None}


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, "\u00e9\n", keep_mode=True)
    assert path.read_text(encoding="utf-8") == "\u00e9\n" and path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    monkeypatch.setattr(os, "urandom", bytes)  # zeros
    (tmp_path / ".state.json.00000000.part").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")

    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_on_nfs_stays_until_its_last_open_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nfs.keep_open_files(monkeypatch)
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    for name in ("open", "below/open", "below/other"):
        (folder / name).write_text(name)
    with (folder / "open").open(), (folder / "below" / "open").open() as other:
        remove_folder(folder)
        remove_folder(folder)
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        assert len(left) == 3 and left[0].startswith(".nfs") and left[1:] == ["below", left[2]], left
        assert other.read() == "below/open"
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        remove_folder(folder)


def test_an_entry_of_a_volume_is_removed_but_for_the_files_that_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which go as soon as they are closed, and their folder the next time that what is unused is removed."""
    entry = tmp_path / "entry"
    (entry / "a").mkdir(parents=True)
    for name in ("a/read", "b", "manifest.json"):
        (entry / name).touch()
    nfs.keep_open_files(monkeypatch)
    with (entry / "a" / "read").open():
        remove_entry(str(entry))
        assert [path.name[:4] for path in entry.rglob("*")] == ["a", ".nfs"]
    remove_entry(str(entry))
    assert list(tmp_path.iterdir()) == []


def test_a_file_on_nfs_that_is_closed_during_a_removal_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".nfs1").touch()
    (tmp_path / "folder" / "other").touch()
    unlink = os.unlink

    def close_first(path: Any, **more: Any) -> None:
        if path == ".nfs1":
            unlink(path, **more)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", close_first)
    remove_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_into_which_another_process_writes_is_not_removed_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    rmdir = os.rmdir

    def write_first(path: Any, **more: Any) -> None:
        (tmp_path / "folder" / "new").touch()
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", write_first)
    with pytest.raises(OSError, match="not empty"):
        remove_folder(tmp_path / "folder")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (json.dumps(OLD), True),
        (json.dumps({**OLD, "version": 1, "ended": 2.0}), True),
        (json.dumps({**OLD, "version": 2, "colour": "blue"}), True),
        (json.dumps({**OLD, "start": None, "world": {"members": ["node/0"], "ranks": 1, "size": 1}}), True),
        (json.dumps({"started": 1.0}), False),
        (json.dumps({**OLD, "started": "1"}), False),
        (json.dumps({**OLD, "ended": None}), False),
        (json.dumps({**OLD, "elapsed": [1]}), False),
        (json.dumps({**OLD, "start": "soon"}), False),
        (json.dumps({**OLD, "lost_nodes": 5}), False),
        (json.dumps({**OLD, "world": {}}), False),
        (json.dumps({**OLD, "world": {"members": 5}}), False),
        (json.dumps({**OLD, "world": {"members": [], "rate": "1"}}), False),
        (json.dumps({**OLD, "world": {"members": ["node/0"], "standby": -1}}), False),
        (json.dumps(OLD)[:-5], False),
        ("[]", False),
        ("", False),
    ],
)
def test_attempt_records_with_and_without_a_version_are_read(text: str, valid: bool) -> None:
    assert (read_attempt(text) is not None) == valid


def test_a_world_without_a_rate_has_none() -> None:
    attempt = read_attempt(json.dumps({**OLD, "world": {"members": ["node/0"]}}))
    assert attempt is not None and attempt["world"]["rate"] is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"kind": "metric", "seconds": [0.5]}', {"kind": "metric", "seconds": [0.5]}),
        ('{"kind": "metric", "seconds": 0.5}', {}),
        ('{"kind": "checkpoint", "seconds": 0.5}', {"kind": "checkpoint", "seconds": 0.5}),
        ('{"iteration": "20"}', {}),
    ],
)
def test_objects_whose_values_readers_cannot_use_are_empty(text: str, values: dict[str, object]) -> None:
    assert read_object(text) == values
