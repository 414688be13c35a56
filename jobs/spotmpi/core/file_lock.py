"""Locks on files, which end with the process that holds them, also on file systems that have none."""

from __future__ import annotations

import errno
import fcntl
from typing import IO

# What flock(2) answers on a file system without locks, such as some network mounts: ENOTSUP on macOS, where it is not
# EOPNOTSUPP as on Linux, ENOLCK for NFS without a lock manager.
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


def lock_file(file: int | IO[str], shared: bool = False) -> bool:
    """Lock an open file until it is closed, without waiting; False where its file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
