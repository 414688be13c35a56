"""What a folder or tar file gives to a push: all that is in it, or an error that names what cannot be pushed."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.core.errors import InputError
from spotmpi.data.local_source import source_of


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "1").write_text("one")
    (folder / "list").write_text("1")
    return folder


def content_of(source: Path) -> dict[str, bytes]:
    return {name: file.read() for name, size, file in source_of(str(source)).files()}


def test_links_are_followed_to_files_and_folders(sample: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "set").symlink_to(sample)
    (linked / "again").symlink_to("set/images")
    (linked / "one").symlink_to("again/1")
    assert content_of(linked) == {"again/1": b"one", "one": b"one", "set/images/1": b"one", "set/list": b"1"}


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"x": "."}, r"x': is a link to .*, which contains it; remove it"),
        ({"a/x": "../b", "b/x": "../a"}, r"x': is a link to .*, which contains it; remove it"),
        ({"x": "nothing"}, r"x': is a broken link; remove it"),
        ({}, r"pipe': is neither a file nor a folder; remove it"),
        ({"x": "/dev/null"}, r"x': is neither a file nor a folder; remove it"),
    ],
)
def test_a_folder_with_an_entry_that_cannot_be_pushed_is_refused(
    sample: Path, links: dict[str, str], message: str
) -> None:
    for name, target in links.items():
        (sample / name).parent.mkdir(exist_ok=True)
        (sample / name).symlink_to(target)
    if not links:
        os.mkfifo(sample / "pipe")
    with pytest.raises(InputError, match=message):
        content_of(sample)


def test_a_folder_that_cannot_be_listed_is_refused(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path.name == "images":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InputError, match=r"images': cannot be read: Permission denied; check its path and permissions"):
        content_of(sample)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("../out", tarfile.REGTYPE, "leads out of its folder"),
        ("/etc/passwd", tarfile.REGTYPE, "leads out of its folder"),
        ("link", tarfile.SYMTYPE, "is neither a file nor a folder"),
        ("device", tarfile.CHRTYPE, "is neither a file nor a folder"),
    ],
)
def test_a_tar_with_members_that_are_no_plain_files_is_refused(
    tmp_path: Path, name: str, kind: bytes, message: str
) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as packed:
        facts = tarfile.TarInfo(name)
        facts.type, facts.linkname = kind, "/etc/passwd"
        packed.addfile(facts, io.BytesIO())

    with pytest.raises(InputError, match=message):
        content_of(tmp_path / "bad.tar")


@pytest.mark.parametrize("path", ["missing", "broken.tar"])
def test_a_source_that_is_none_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "broken.tar").write_bytes(b"no tar")
    with pytest.raises(
        InputError, match=r"SRC = .*(no such folder or file on this machine|cannot be read as a tar file)"
    ):
        content_of(tmp_path / path)


@pytest.mark.parametrize("text", ["", "~nobody-here/set", "a" * 300])
def test_a_path_that_nothing_can_have_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"SRC = .*(no such folder or file on this machine|File name too long)"):
        source_of(text)
