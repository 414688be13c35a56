"""Which errors of the operating system end a run, and which only an attempt."""

from __future__ import annotations

import errno
import socket

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.outcomes import INTERRUPTION, NOT_RETRYABLE, Outcome, outcome_of_error


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (FileNotFoundError("the image has no mpirun on PATH"), True),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (FileNotFoundError(), True),
        (NotADirectoryError(), True),
        (OSError("the code in user.tgz cannot be unpacked"), True),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), False),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
    ],
    ids=str,
)
def test_only_a_permanent_error_ends_the_run(error: OSError, permanent: bool) -> None:
    expected = (
        Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
        if permanent
        else Outcome(INTERRUPTION, str(error), protocol.INTERRUPTED)
    )
    assert outcome_of_error(error) == expected
