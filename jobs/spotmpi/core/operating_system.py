"""What spotmpi needs of this machine's operating system: any POSIX system is a client, only Linux runs jobs.

Locks on files end with the process that holds them, also on file systems that have none.
"""

from __future__ import annotations

import errno
import fcntl
import sys
from typing import IO


def can_run_jobs() -> bool:
    """Whether runs on this machine are possible.

    That nothing of a run outlives it, whatever ends first, takes subreapers and death signals, prctl(2) of Linux; and
    the wheels of MPI and of the images' frameworks are Linux's.
    """
    return sys.platform == "linux"


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
