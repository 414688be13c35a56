"""Errors of the operating system: which of them end a run, and which another attempt may get past."""

from __future__ import annotations

import errno

from . import protocol, record
from .outcomes import INTERRUPTION, NOT_RETRYABLE, Outcome

_PERMANENT = (*record.FULL, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)


def is_permanent(error: OSError) -> bool:
    """Whether another attempt would meet *error* again: a full disk, a missing file, a denied permission.

    An error without a number counts as one, too: no system call gave it, it is a library's own finding, such as a
    broken archive. Everything else may pass: ESTALE and EIO of a network file system, EMFILE, a name that DNS does not
    know for a moment (`socket.gaierror`, whose numbers are negative).
    """
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError, PermissionError))
    return missing or error.errno is None or error.errno in _PERMANENT


def outcome(error: OSError) -> Outcome:
    """How an attempt ends that *error* keeps from going on."""
    if is_permanent(error):
        return Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
    return Outcome(INTERRUPTION, str(error), protocol.INTERRUPTED)
