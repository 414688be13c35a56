"""A double of a network file system for the files that this process has open.

How its original behaves: the Linux NFS client gives a file that is removed while a process of its machine has it open a
name `.nfs…` in its folder (`nfs_sillyrename` in fs/nfs/unlink.c), which is removed when it is closed, and answers EBUSY
to a removal of that name. libfuse does the same with `.fuse_hidden…`: tests/slurm/test_network_folder.py has one.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import Any

import pytest


def keep_open_files(patch: pytest.MonkeyPatch) -> None:
    """Let removed files stay under another name while this process has them open."""
    unlink = os.unlink

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        place = Path(path) if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path
        if place.resolve() not in _open_files():
            unlink(path, dir_fd=dir_fd)
        elif place.name.startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(place))
        else:
            place.rename(place.with_name(f".nfs{uuid.uuid4().hex}"))

    patch.setattr(os, "unlink", remove)
    patch.setattr(os, "remove", remove)


def _open_files() -> set[Path]:
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        try:
            found.add(number.readlink())
        except FileNotFoundError:  # that of the list itself
            continue
    return found
