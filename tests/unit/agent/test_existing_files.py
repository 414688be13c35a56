"""What exists, what does not, and what cannot be read: the same on every version of Python."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spotmpi.agent.files import exists, is_file, is_folder
from tests.transient_errors import TransientErrors


def test_a_file_and_a_folder_exist_and_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert exists(tmp_path) and is_folder(tmp_path) and not is_file(tmp_path)
    for name in ("file", "link"):
        assert is_file(tmp_path / name) and not is_folder(tmp_path / name)


def test_what_is_missing_or_below_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path / "nothing", tmp_path / "file" / "below", tmp_path / "link"):
        assert not (exists(path) or is_file(path) or is_folder(path))


@pytest.mark.parametrize("error", [errno.EACCES, errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("ask", [exists, is_file, is_folder])
def test_what_cannot_be_read_is_an_error_not_a_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, ask: object
) -> None:
    TransientErrors(monkeypatch.setattr).add("stat", str(tmp_path), error)
    assert callable(ask)
    with pytest.raises(OSError) as raised:
        ask(tmp_path)
    assert raised.value.errno == error
    assert ask(tmp_path) in (True, False), "the next time it is read"
