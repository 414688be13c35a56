"""Packs a run's folder, or one part of it, while the run may change it. Passed to a pod as text.

python3 -I -S -c SOURCE FOLDER PART TAIL

stdout: a tar of PART of FOLDER ("." is all of it). Its last entry, LEFT_OUT, is a JSON object: the names of the
files that are missing or damaged in the tar, and why; a tar without it is incomplete. TAIL zeros follow, as in
`spotmpi.agent.store`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import sys
import tarfile
from typing import IO

LEFT_OUT = ".left-out.spotmpi-part"


class Extent:
    """A file with exactly the bytes that its entry announced: zeros stand for those that it lost meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """The next *size* bytes."""
        data = b""
        try:
            data = self._file.read(size)
        except OSError as error:
            self.damage = "cannot be read: %s" % error.strerror
        if len(data) < size:
            self.damage = self.damage or "was truncated while it was read"
        return data.ljust(size, b"\0")


def add(packed: tarfile.TarFile, folder: str, name: str, excluded: dict[str, str]) -> None:
    """Add the entry *name* of *folder*, and all below it, to a tar; what cannot be added goes to *excluded*."""
    path = os.path.join(folder, name)
    try:
        status = os.lstat(path)
        entry = _entry(name, status)
        if stat.S_ISLNK(status.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        names = sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else []
        # Non-blocking: a FIFO that has replaced a file must not make us wait for its writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW) if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        removed = isinstance(error, FileNotFoundError)
        excluded[name] = "was removed while it was read" if removed else "cannot be read: %s" % error.strerror
        return
    if file is not None:
        _add_file(packed, name, file, excluded)
    elif stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
        packed.addfile(entry)
    else:
        excluded[name] = "is not a file, folder or link"
    for each in names:
        add(packed, folder, os.path.join(name, each), excluded)


def _add_file(packed: tarfile.TarFile, name: str, file: int, excluded: dict[str, str]) -> None:
    with os.fdopen(file, "rb") as content:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            excluded[name] = "was replaced while it was read"
            return
        entry, extent = _entry(name, status), Extent(content)
        entry.size = status.st_size
        packed.addfile(entry, extent)  # type: ignore[arg-type]  # it only reads
        if extent.damage:
            excluded[name] = extent.damage


def _entry(name: str, status: os.stat_result) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    return entry


def main(folder: str, part: str, tail: str) -> None:
    """Write the tar of *part* of *folder* to stdout."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        sys.exit("folder not found: " + folder)
    excluded: dict[str, str] = {}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as packed:
        if part == ".":
            for name in sorted(os.listdir(folder)):
                add(packed, folder, name, excluded)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(os.path.join(folder, part))
                add(packed, folder, part, excluded)
        last = json.dumps(excluded).encode()
        entry = tarfile.TarInfo(LEFT_OUT)
        entry.size = len(last)
        packed.addfile(entry, io.BytesIO(last))
    sys.stdout.buffer.write(bytes(int(tail)))


if __name__ == "__main__":
    main(*sys.argv[1:])
