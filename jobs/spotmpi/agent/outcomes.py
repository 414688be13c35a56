"""How an attempt and a run can end, who can request it, and which errors of the operating system end it for good."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, Tuple, TypeVar

from . import protocol, record
from .clock import Clock

if TYPE_CHECKING:
    from .progress import Progress

SUCCEEDED = "succeeded"
FAILURE = "failure"  # the program's own error, or an unknown one
INTERRUPTION = "interruption"  # the machine was taken away
NOT_RETRYABLE = "not retryable"  # another attempt cannot help
STOPPED = "stopped"  # requested by a user
_OF_RUN = {SUCCEEDED: record.SUCCEEDED, STOPPED: record.STOPPED}  # its outcome by the cause of its last attempt
COMPLETED = "Completed"  # condition of a JobSet; the other is Failed

_PERMANENT = (
    *record.DISK_FULL,
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOEXEC, errno.E2BIG),  # of a command
)

PAUSES = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60)  # seconds between repetitions of a step of the record
MAX_PAUSE = 60.0  # seconds before another attempt
T = TypeVar("T")


class Outcome(NamedTuple):
    """How an attempt ended: one of the causes above, the reason, the agent's exit code, and the nodes that were lost.

    A lost node disappeared without notice; no agent can tell whether its machine was taken away or its memory ran out.
    *limit* is the field of ``[limits]`` that ended the attempt, if one did. *node* is that of the rank or launcher that
    failed first, where that is known.
    """

    cause: str
    reason: str | None
    exit_code: int
    lost_nodes: Tuple[int, ...] = ()
    limit: Optional[str] = None
    node: Optional[int] = None


class StopRequest(NamedTuple):
    """The outcome with which an attempt is to end, and whether it writes a checkpoint first.

    That may take *patience*, by default all of the grace.
    """

    outcome: Outcome
    checkpoint_first: bool
    patience: Optional[float] = None  # seconds


class StopSource(Protocol):
    """What an attempt polls to learn whether to end."""

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        ...

    def kill_requested(self) -> bool:
        """Whether to kill all processes at once."""
        ...


def is_permanent(error: OSError) -> bool:
    """Whether another attempt would meet *error* again: a full disk, a missing file, a denied permission.

    An error without a number counts as permanent, too: it comes from a library, not from a system call, such as that
    of a broken archive. Everything else may pass: ESTALE and EIO of a network file system, EMFILE, a name that DNS does
    not resolve for a moment (`socket.gaierror`, whose numbers are negative).
    """
    return error.errno is None or error.errno in _PERMANENT


def outcome_of_error(error: OSError, folder: str | None = None) -> Outcome:
    """The outcome of an attempt, recorded in *folder*, that *error* prevents from continuing."""
    if is_permanent(error):
        return Outcome(NOT_RETRYABLE, error_reason(error, folder), protocol.NOT_RETRYABLE)
    return Outcome(INTERRUPTION, error_reason(error, folder), protocol.INTERRUPTED)


def error_reason(error: OSError, folder: str | None) -> str:
    """The reason of an attempt, recorded in *folder*, that ends by *error*."""
    if folder is not None and error.errno in record.DISK_FULL:
        return record.disk_full_reason(error, folder)
    return "%s: %s" % (error.filename, error.strerror) if error.filename and error.strerror else str(error)


def is_futile(progress: Progress, seconds: float) -> bool:
    """Whether an attempt of so many *seconds* came to nothing.

    Programs that report no iterations are taken by their checkpoints and their time: the longest pause saves nothing
    of an attempt that lasts as long.
    """
    return progress.first_iteration is None and progress.checkpoint is None and seconds < MAX_PAUSE


def restart_pause(count: int) -> float:
    """Seconds before attempt number *count* that follows an error of the machine; none before the first."""
    return min(2.0 ** (min(count, 10) - 1), MAX_PAUSE) if count else 0.0


def repeat(step: Callable[[], T], clock: Clock, pauses: Sequence[float] = PAUSES) -> T:
    """What *step* gives, which is repeated after *pauses* while it raises an error that may pass."""
    for seconds in pauses:
        try:
            return step()
        except OSError as error:
            if is_permanent(error):
                raise
        clock.sleep(seconds)
    return step()


def run_outcome(
    recorded: str | None = None,
    cause: str | None = None,
    given_up: bool = False,
    deleted: bool = False,
    condition: str | None = None,
    writer_alive: bool = True,
) -> str | None:
    """How a run ended: succeeded, failed, stopped or lost, by the best evidence there is; None while it is active.

    Agents, followers and readers of run folders share this one rule.

    In this order: the last event of its record (*recorded*), the *cause* with which its last attempt ended, that a
    follower has given it up, that its JobSet was *deleted*, a terminal *condition* of its JobSet. A run without any of
    these is lost once no writer of its record is alive.
    """
    if recorded in record.TERMINAL:
        return recorded
    if cause is not None:
        return _OF_RUN.get(cause, record.FAILED)
    if given_up:
        return record.FAILED
    if deleted:
        return record.STOPPED
    if condition is not None:
        return record.SUCCEEDED if condition == COMPLETED else record.FAILED
    return None if writer_alive else record.LOST
