"""Data on this machine that is to go to a run volume: a folder or a tar file, as named files with checksums."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from jobs.errors import wrong
from jobs.pod import store

Index = dict[str, list[object]]  # name: bytes and SHA-256


class Source(Protocol):
    """Files by name."""

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Name, bytes and content of every file, in order; each content is read before the next is asked for."""
        ...


class Folder:
    """The files below a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Every file below it."""
        for name in store.files(str(self._path)):
            with (self._path / name).open("rb") as file:
                yield name, (self._path / name).stat().st_size, file


class Tar:
    """The files in a tar, compressed or not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Every file in it; InputError for anything else than files and folders, and for what leads out of it."""
        with self._open() as packed:
            for member in packed:
                if member.isdir():
                    continue
                file = packed.extractfile(member) if member.isfile() else None
                if file is None:
                    raise wrong("SRC", member.name, f"is neither a file nor a folder; pack {self._path} without links")
                name = str(Path(member.name))
                if name.startswith("/") or ".." in Path(name).parts:
                    raise wrong("SRC", member.name, f"leads out of its folder; pack {self._path} with plain names")
                with closing(file):
                    yield name, member.size, file  # type: ignore[misc]

    @contextmanager
    def _open(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self._path) as packed:
                yield packed
        except (tarfile.TarError, EOFError, OSError) as error:
            raise wrong("SRC", str(self._path), f"cannot be read as a tar file: {error}") from error


def source_of(text: str) -> Source:
    """The folder or tar file of that path; InputError where it is neither."""
    path = Path(text).expanduser()
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return Tar(path)
    raise wrong("SRC", text, "is no folder or file here, and no https:// or s3:// address")
