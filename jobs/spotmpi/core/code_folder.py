"""A folder of the user's code as one deterministic archive; what git ignores stays behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spotmpi.core import archives
from spotmpi.core.errors import input_error

LARGEST = 500 << 20  # bytes of files: what is more is data, not code


class Packed(NamedTuple):
    """A folder of code, packed."""

    archive: bytes
    sha256: str
    files: int
    size: int  # bytes, unpacked

    @property
    def digest(self) -> str:
        """Sixteen hex digits that name the archive."""
        return self.sha256[: archives.DIGITS]

    def __str__(self) -> str:
        return f"{self.files} files, {self.size / 1e3:,.0f} kB ({self.digest})"


def names(folder: Path) -> list[str]:
    """The files of *folder* that git would not ignore, relative to it, in order; no checkout is needed.

    Raises:
        InputError: git cannot tell.
    """
    if _git(folder, "rev-parse", "--is-inside-work-tree").returncode == 0:
        listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    else:
        with tempfile.TemporaryDirectory() as aside:
            # An empty repository knows no file, and reads the ignore files all the same.
            _git(folder, "init", "--quiet", "--bare", aside)
            there = ("--git-dir", aside, "--work-tree", ".")
            listed = _git(folder, *there, "ls-files", "-z", "--others", "--exclude-standard")
    if listed.returncode:
        said = listed.stderr.decode("utf-8", "replace").strip()
        raise input_error("code", str(folder), f"git cannot list its files: {said}")
    found = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    return sorted(name for name in found if os.path.lexists(folder / name))


def pack(folder: Path) -> Packed:
    """All that `names` gives, packed.

    Raises:
        InputError: a file cannot be read, or there is too much for code.
    """
    members, size = [], 0
    for name in names(folder):
        member = _member(folder, name)
        size += len(member.content)
        if size > LARGEST:
            remedy = f"is more than {LARGEST >> 20} MiB; put data elsewhere (`data`) or into .gitignore"
            raise input_error("code", str(folder), remedy)
        members.append(member)
    if not members:
        raise input_error("code", str(folder), "has no file that git does not ignore")
    archive = archives.archive(members)
    return Packed(archive, hashlib.sha256(archive).hexdigest(), len(members), size)


def _member(folder: Path, name: str) -> archives.Member:
    path = folder / name
    try:
        if path.is_symlink() and not path.is_file():
            raise input_error("code", name, "is a link that leads to no file; remove it or put it into .gitignore")
        return archives.Member(name, path.read_bytes(), os.access(path, os.X_OK))
    except OSError as error:
        raise input_error(
            "code", name, f"cannot be read ({error.strerror}); put it into .gitignore or mend it"
        ) from error


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command: Sequence[str] = ("git", "-C", str(folder), *arguments)
    try:
        return subprocess.run(command, capture_output=True, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"})
    except OSError as error:
        raise input_error(
            "code", str(folder), f"git is needed to tell what to leave behind: {error.strerror}"
        ) from error
