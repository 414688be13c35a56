"""What spotmpi needs of this machine's operating system: any POSIX system is a client, only Linux runs jobs."""

from __future__ import annotations

import sys


def can_run_jobs() -> bool:
    """Whether runs on this machine are possible.

    That nothing of a run outlives it, whatever ends first, takes subreapers and death signals, prctl(2) of Linux; and
    the wheels of MPI and of the images' frameworks are Linux's.
    """
    return sys.platform == "linux"
