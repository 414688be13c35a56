"""Unpacks archives beneath a folder, whatever names, links and lengths are in them. Passed to a pod as text.

python3 -I -S -c SOURCE take FOLDER      stdin: a tar of files, compressed or not; each appears once it is whole

No path is resolved: each folder on the way is opened by descriptor and is not a link (openat(2) with O_NOFOLLOW), so
that neither links in the archive nor those in the folder lead out of it, however long a path becomes. `tarfile`'s own
filters resolve paths, which is what CVE-2025-4517, -4330 and -4138 get past, and Python 3.11.2 and 3.8 have none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tarfile
import uuid
import zlib
from typing import Callable, Optional

PART = ".spotmpi-part"  # as in `store`, which is passed to pods alone, too
_DEPTH = 200  # folders; `shutil.rmtree` of Python 3.11 calls itself for each
_LONGEST = 4096 - 256  # bytes of a path with that of the folder: PATH_MAX, and room for a longer folder
_BLOCK = 1 << 20
# What the name of an entry, or an entry before it, can cause; other errors are those of the disk.
_UNFIT = (
    errno.EEXIST,
    errno.EILSEQ,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
)
DAMAGES = (tarfile.TarError, ValueError, EOFError, zlib.error)  # what reading and unpacking a bad archive raises
Rename = Callable[[str], Optional[str]]
Install = Callable[[str, str], None]


def unpack(
    packed: tarfile.TarFile,
    folder: str,
    skipped: dict[str, str] | None = None,
    rename: Rename = lambda name: name,
    install: Install | None = None,
) -> dict[str, int]:
    """Unpack the files and folders of a tar beneath *folder*; names and bytes of the files.

    *rename* gives the name of a member below *folder*, None for one to leave out. Files of the same name are replaced.
    With *skipped*, links that stay in *folder* wherever it is moved are unpacked as well, and what is unfit is added
    to it, with the reason, in place of an error. *install* gives a file that is whole its name, of the paths of both.

    Raises:
        ValueError: *install* does, or a member is unfit: neither file nor folder, or not within *folder*.
        OSError: the disk is full or fails.
    """
    os.makedirs(folder, exist_ok=True)
    sizes: dict[str, int] = {}
    links = skipped is not None
    with contextlib.closing(Beneath(folder, install)) as beneath:
        for member in packed:
            require_readable(member)
            name = rename(member.name)
            if name is None:
                continue
            try:
                parts = beneath.parts(name)
                if member.isdir():
                    beneath.enter(parts, member.mode)
                elif parts and member.isfile() and not (links and member.issparse()):  # which takes more than it sends
                    beneath.write(parts, member, packed)
                    sizes["/".join(parts)] = member.size
                elif parts and member.issym() and links:
                    beneath.link(parts, member.linkname)
                else:
                    raise ValueError("is not a file, folder or link" if links else "is neither a file nor a folder")
            except (ValueError, OSError) as error:
                reason = _reason(error)
                if skipped is None:
                    raise ValueError("%r %s" % (member.name, reason)) from error
                skipped[member.name] = reason
    return sizes


def require_readable(member: tarfile.TarInfo) -> None:
    """Raise ReadError for a size with which `tarfile` would go backwards for ever (CVE-2025-8194)."""
    if member.size < 0:
        raise tarfile.ReadError("%r has a negative size" % member.name)


def _reason(error: Exception) -> str:
    """Why an entry is unfit; raises errors that are not of the entry."""
    if isinstance(error, OSError):
        if error.errno not in _UNFIT:
            raise error
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return "leads through a link or a file"
        return "cannot be created: %s" % error.strerror
    return "has a name that cannot be written" if isinstance(error, UnicodeError) else str(error)


class Beneath:
    """A folder in which all is created at real places: no name, and no link in it, leads out."""

    def __init__(self, folder: str, install: Install | None) -> None:
        self._folder, self._install = folder, install
        self._top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._longest = _LONGEST - len(os.fsencode(os.path.abspath(folder)))
        self._last: tuple[list[str], int] = ([], self._top)  # most files come folder by folder

    def close(self) -> None:
        """Close the descriptors."""
        self._forget()
        os.close(self._top)

    def parts(self, name: str) -> list[str]:
        """The parts of *name*, none for the folder itself; ValueError where it is not a name within the folder."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts:
            raise ValueError("is outside of the folder")
        if "\0" in name:
            raise ValueError("has a name that cannot be written")
        if len(parts) > _DEPTH or len(os.fsencode(name)) > self._longest:
            raise ValueError("has a path that is too long")
        return parts

    def enter(self, parts: list[str], mode: int = 0o777) -> int:
        """A descriptor of a folder, made with *mode* where it is missing; valid until the next call."""
        if self._last[0] == parts:
            return self._last[1]
        self._forget()
        descriptor = self._top
        for depth, part in enumerate(parts, 1):
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, mode & 0o777 | 0o700 if depth == len(parts) else 0o777, dir_fd=descriptor)
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            finally:
                if descriptor != self._top:
                    os.close(descriptor)
            descriptor = below
        self._last = (parts, descriptor)
        return descriptor

    def _forget(self) -> None:
        if self._last[1] != self._top:
            os.close(self._last[1])
        self._last = ([], self._top)

    def write(self, parts: list[str], member: tarfile.TarInfo, packed: tarfile.TarFile) -> None:
        """Write a file, which appears once it is whole, with the permissions and the time of *member*."""
        folder, part = self.enter(parts[:-1]), ".%s%s" % (uuid.uuid4().hex, PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        source = packed.extractfile(member)
        assert source is not None, "it is a regular file"
        try:
            with os.fdopen(os.open(part, flags, member.mode & 0o777 | 0o600, dir_fd=folder), "wb") as file, source:
                shutil.copyfileobj(source, file, _BLOCK)
                if member.mtime > 0:
                    file.flush()
                    with contextlib.suppress(OSError, OverflowError, ValueError):
                        os.utime(file.fileno(), (member.mtime, member.mtime))
            if self._install:
                above = os.path.join(self._folder, *parts[:-1])
                self._install(os.path.join(above, part), os.path.join(above, parts[-1]))
            else:
                os.replace(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)

    def link(self, parts: list[str], target: str) -> None:
        """Make a symbolic link; ValueError for one that could leave the folder.

        Only its first steps may lead up: after a name, which may be a link later on, nobody knows where they lead to.
        """
        steps = [part for part in target.split("/") if part not in ("", ".")]
        up = next((at for at, part in enumerate(steps) if part != ".."), len(steps))
        if target.startswith("/") or up >= len(parts) or ".." in steps[up:] or "\0" in target:
            raise ValueError("is a link out of the run's folder, to %s" % target)
        if not target:
            raise ValueError("is a link without a target")
        os.symlink(target, parts[-1], dir_fd=self.enter(parts[:-1]))


def main(verb: str, folder: str) -> None:
    """Unpack the tar of stdin to *folder*; *verb* shows in a list of processes what this is."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as packed:
        unpack(packed, folder)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, *DAMAGES) as error:
        # Nobody learns of the end of a command in a pod that has not read its input to the end: exec does not return.
        while sys.stdin.buffer.read(_BLOCK):
            pass
        sys.exit(str(error))
