"""Data on this machine to push to a run volume: the files of a folder or a tar file."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from spotmpi.agent import store
from spotmpi.agent.files import error_text
from spotmpi.core import names
from spotmpi.core.errors import InputError, input_error

Index = dict[str, list[object]]  # name: bytes and SHA-256


class Source(Protocol):
    """Files by name."""

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Name, bytes and content of every file, in order; each content is read before the next file."""
        ...


class Folder:
    """The files below a folder; links are followed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Every file below it; InputError for anything else, for unreadable files and for cyclic links."""
        for path in self._below(self._path, ()):
            try:
                with path.open("rb") as file:
                    size = path.stat().st_size
                    yield str(path.relative_to(self._path)), size, file
            except OSError as error:
                raise _unreadable(path, error) from error

    def _below(self, folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
        """The files below *folder*, which is reached through the real folders *above*."""
        real = Path(os.path.realpath(folder))
        if real in above:
            raise input_error("SRC", str(folder), f"is a link to {real}, which contains it; remove it")
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise _unreadable(folder, error) from error
        for path in entries:
            if path.name.endswith(store.PART):
                continue
            if path.is_dir():
                yield from self._below(path, (*above, real))
            elif path.is_file():
                yield path
            else:
                what = "is neither a file nor a folder" if path.exists() else "is a broken link"
                raise input_error("SRC", str(path), f"{what}; remove it")


class Tar:
    """The files in a tar, compressed or not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Every file in it; InputError for other members than files and folders, and for paths out of it."""
        with self._open() as packed:
            for member in packed:
                if member.isdir():
                    continue
                file = packed.extractfile(member) if member.isfile() else None
                if file is None:
                    raise input_error(
                        "SRC", member.name, f"is neither a file nor a folder; pack {self._path} without links"
                    )
                name = str(Path(member.name))
                if name.startswith("/") or ".." in Path(name).parts:
                    raise input_error(
                        "SRC", member.name, f"leads out of its folder; pack {self._path} with plain names"
                    )
                with closing(file):
                    yield name, member.size, file  # type: ignore[misc]

    @contextmanager
    def _open(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self._path) as packed:
                yield packed
        except (tarfile.TarError, EOFError, OSError) as error:
            raise input_error("SRC", str(self._path), f"cannot be read as a tar file: {error_text(error)}") from error


def source_of(text: str) -> Source:
    """The folder or tar file of that path; InputError if it is neither."""
    path = names.absolute(text)
    try:
        if text and path.is_dir():
            return Folder(path)
        if path.is_file():
            return Tar(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    raise input_error("SRC", text, "no such folder or file on this machine, and no https:// or s3:// address")


def _unreadable(path: Path, error: OSError) -> InputError:
    return input_error("SRC", str(path), f"cannot be read: {error.strerror}; check its path and permissions")
