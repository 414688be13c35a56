"""Locks on files, and file systems without them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from spotmpi.agent.files import lock_file


def test_a_lock_keeps_others_out_until_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a") as held:
        assert lock_file(held)
        with (tmp_path / "lock").open("a") as other, pytest.raises(BlockingIOError):
            lock_file(other)
    with (tmp_path / "lock").open("a") as other:
        assert lock_file(other)


def test_shared_locks_go_together_and_keep_out_an_exclusive_one(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as one, (tmp_path / "lock").open() as two, (tmp_path / "lock").open("a") as three:
        assert lock_file(one, shared=True) and lock_file(two, shared=True)
        with pytest.raises(BlockingIOError):
            lock_file(three)


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_no_error(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: fail_with(number))
    with (tmp_path / "lock").open("a") as file:
        assert not lock_file(file)


def test_any_other_failure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: fail_with(errno.EIO))
    with (tmp_path / "lock").open("a") as file, pytest.raises(OSError, match="Input/output error"):
        lock_file(file)


def fail_with(number: int) -> None:
    raise OSError(number, os.strerror(number))
