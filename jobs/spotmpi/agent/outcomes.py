"""How an attempt and a run can end, which errors end them for good, and the limits that end a run between two attempts.

Those are what its nodes cost, and nodes that are lost again and again. A pod that the kernel kills as a whole for its
memory looks to agents like one whose machine is gone: the connection closes. The cluster knows the difference, but
agents do not query it. Machines that are taken away are different ones each time, and mostly give notice.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, Tuple, TypeVar

from . import protocol, record
from .clock import Clock
from .files import error_text, is_folder
from .plan import RunPlan
from .schema import AttemptRecord

if TYPE_CHECKING:
    from .progress import Progress

SUCCEEDED = "succeeded"
FAILURE = "failure"  # the program's own error, or an unknown one
INTERRUPTION = "interruption"  # the machine was taken away
NOT_RETRYABLE = "not retryable"  # another attempt cannot help
STOPPED = "stopped"  # requested by a user
_OF_RUN = {SUCCEEDED: record.SUCCEEDED, STOPPED: record.STOPPED}  # its outcome by the cause of its last attempt
_EXIT_CODES = {  # of agents, by the cause
    SUCCEEDED: 0,
    STOPPED: 0,
    FAILURE: protocol.FAILED,
    INTERRUPTION: protocol.INTERRUPTED,
    NOT_RETRYABLE: protocol.NOT_RETRYABLE,
}
COMPLETED = "Completed"  # condition of a JobSet; the other is Failed

_PERMANENT = (
    *record.DISK_FULL,
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOEXEC, errno.E2BIG),  # of a command
)

_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.E2BIG: "an argument or variable may have 128 KiB: write longer ones to a file, and send its path",
}

PAUSES = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60)  # seconds between repetitions of a step of the record
MAX_PAUSE = 60.0  # seconds before another attempt
T = TypeVar("T")

IDLE = 600.0  # seconds between two attempts that are paid for: machines idle for longer are taken away
MAX_LOSSES = 5  # losses of one node since the run last made progress
AT_ONCE = 1.0  # seconds between two losses in which no program has exceeded its memory: its node has just been replaced

# What ends a program that cannot be read, in the reason: Python's exceptions, and its lines of a program that it lacks.
_NO_MODULE = r": (?:ModuleNotFoundError\b|\S+: (?:No module named|Error while finding module .*ModuleNotFoundError)\b)"
_SPOTMPI = r"No module named '?spotmpi\b"
_NO_LIBRARY = r"No module named '?encodings\b"  # the first that an interpreter imports
_NO_SCRIPT = r": \S+: can't open file .*\[Errno 2\]"
_SYNTAX = r": (?:SyntaxError|IndentationError|TabError)\b"


class Outcome(NamedTuple):
    """How an attempt or a run ended: one of the causes above, the reason, and the nodes that were lost.

    A lost node disappeared without notice; no agent can tell whether its machine was taken away or its memory ran out.
    *limit* is the field of ``[limits]`` that ended the attempt, if one did. *node* is that of the rank or launcher that
    failed first, where that is known.
    """

    cause: str
    reason: Optional[str] = None
    lost_nodes: Tuple[int, ...] = ()
    limit: Optional[str] = None
    node: Optional[int] = None

    @property
    def exit_code(self) -> int:
        """That of an agent that it ends."""
        return _EXIT_CODES[self.cause]


class StopRequest(NamedTuple):
    """The outcome with which an attempt is to end, and whether it writes a checkpoint first."""

    outcome: Outcome
    checkpoint_first: bool


class StopSignal(Protocol):
    """What an attempt polls to learn whether to end."""

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        ...

    def patience(self) -> float | None:
        """Seconds of the grace that are left to the first node that got notice; None where none has."""
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
    return Outcome(NOT_RETRYABLE if is_permanent(error) else INTERRUPTION, error_reason(error, folder))


def error_reason(error: OSError, folder: str | None) -> str:
    """The reason of an attempt, recorded in *folder*, that ends by *error*."""
    if folder is not None and error.errno in record.DISK_FULL:
        return record.disk_full_reason(error, folder)
    if folder is not None and error.errno == errno.ENOENT and _is_gone(folder):
        return "the run folder %s was moved or deleted" % folder
    reason = "%s: %s" % (error.filename, error.strerror) if error.filename and error.strerror else error_text(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return "%s; %s" % (reason, remedy) if remedy else reason


def _is_gone(folder: str) -> bool:
    try:
        return not is_folder(folder)
    except OSError:  # its disk fails
        return False


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


def node_seconds(attempts: Sequence[AttemptRecord], now: float) -> list[float]:
    """Seconds, up to the Unix time *now*, for which each of *attempts*, all of one submission, had its nodes.

    Agents measure how long each lasted. Unix times, of several machines, tell only how long the pauses were, which are
    limited, and when an attempt that was lost with its agent ended, which no other clock can.
    """
    seconds = []
    for following, attempt in enumerate(attempts, 1):
        next_start = _allocated_since(attempts[following]) if following < len(attempts) else now
        if "ended" in attempt:
            elapsed = attempt.get("elapsed", attempt["ended"] - _allocated_since(attempt))
            seconds.append(max(0.0, elapsed) + min(max(0.0, next_start - attempt["ended"]), IDLE))
        else:
            seconds.append(max(0.0, next_start - _allocated_since(attempt)))
    return seconds


def dollars(attempts: Sequence[AttemptRecord], now: float) -> float:
    """What *attempts* have cost up to the Unix time *now*: each at the rate of its own world, where that is known."""
    seconds = node_seconds(attempts, now)
    return sum(_rate(attempt) * seconds[number] for number, attempt in enumerate(attempts)) / 3600.0


def seconds_left(plan: RunPlan, rate: float | None, attempts: Sequence[AttemptRecord], now: float) -> float | None:
    """In how many seconds from *now* an attempt at *rate* has to start to end, so that ``limits.cost`` holds.

    None without such a limit, or where the rate is unknown.
    """
    limit = plan["limits"]["cost"]
    if not limit or not rate:
        return None
    return (limit - dollars(attempts, now)) / rate * 3600.0 - plan["grace"]


def cost_reason(plan: RunPlan, rate: float) -> str:
    """The reason of a run that ended at *rate* because of its cost limit."""
    limit = plan["limits"]["cost"]
    assert limit is not None
    capacity = plan.get("capacity")
    deadline = capacity["deadline"] if capacity else None
    name = "capacity.budget" if deadline and deadline["budget"] == limit else "limits.cost"
    return "%s ($%g) is nearly spent at $%g an hour; raise it and resume the run" % (name, limit, rate)


class Deadlines(NamedTuple):
    """When an attempt is over, or is not to begin: *run* as `Clock.uptime` counts, *cost* as `Clock.elapsed` does.

    *ending* is in Unix seconds.
    """

    run: Optional[float] = None
    cost: Optional[float] = None
    ending: Optional[float] = None  # of its nodes
    rate: float = 0.0  # US dollars per hour of all nodes

    def exceeded(self, plan: RunPlan, clock: Clock) -> StopRequest | None:
        """The end of an attempt once one of them is over."""
        if self.run is not None and clock.uptime() >= self.run:
            assert plan["limits"]["run"] is not None
            limit = protocol.duration(plan["limits"]["run"])
            return limit_request("run", "limits.run (%s) is over; raise it and resume the run" % limit)
        if self.cost is not None and clock.elapsed() >= self.cost:
            return limit_request("cost", cost_reason(plan, self.rate))
        if self.ending is not None and clock() >= self.ending:
            return limit_request("ending", plan["ending"]["reason"])
        return None


def limit_request(limit: str, reason: str) -> StopRequest:
    """The end of an attempt that exceeded *limit*; without progress it may help to start again, otherwise it cannot."""
    if limit == "no_progress":
        return StopRequest(Outcome(FAILURE, reason, limit=limit), False)
    return StopRequest(Outcome(NOT_RETRYABLE, reason, limit=limit), limit in ("run", "cost", "ending"))


def restart_limit(plan: RunPlan, restarts: int) -> Outcome | None:
    """The end of a run that was restarted more often than both limits allow: without a volume, no record counts.

    JobSet counts failures, not interruptions; a pod that is killed for its memory, again and again, looks like one.
    """
    allowed = plan["limits"]["failures"] + plan["limits"]["interruptions"]
    if restarts <= allowed:
        return None
    times = protocol.counted(restarts, "time")
    reason = "restarted %s: no retries left (limits.failures + limits.interruptions = %d)" % (times, allowed)
    return Outcome(NOT_RETRYABLE, reason)


def same_again(outcome: Outcome, attempts: Iterable[AttemptRecord]) -> Outcome | None:
    """The end of a run whose program lacks a module or its script, or has an error of syntax, and came to nothing yet.

    After an iteration or a checkpoint of any of its *attempts* what is missing was there, and may be there again.
    """
    reason, reached = outcome.reason or "", ("last_iteration", "checkpoint_iteration", "resumed_iteration")
    if outcome.cause != FAILURE or any(attempt.get(key) is not None for attempt in attempts for key in reached):
        return None
    if re.search(_NO_MODULE, reason) and re.search(_SPOTMPI, reason):
        remedy = (
            "; set checkpoint.memory, with which programs find spotmpi.checkpoint, or install spotmpi in this Python"
        )
    elif re.search(_NO_MODULE, reason) and re.search(_NO_LIBRARY, reason):
        remedy = "; this Python does not find its own library: unset PYTHONHOME, which names the folder of another one"
    elif re.search(_NO_MODULE, reason):
        remedy = "; install the module (in the image, where there is one), or send it with `code` or `files`"
    elif re.search(_NO_SCRIPT, reason):
        remedy = "; name the script relative to `code` (without it, to the folder where the run was submitted)"
    elif re.search(_SYNTAX, reason):
        remedy = ""
    else:
        return None
    reason += "; another attempt would end in the same way" + remedy
    return Outcome(NOT_RETRYABLE, reason)


def repeatedly_lost_node(attempts: Iterable[AttemptRecord]) -> int | None:
    """The node that was lost `MAX_LOSSES` times since these *attempts*, oldest first, last made progress, or None.

    Progress is an iteration or a checkpoint beyond all earlier ones. A program that reports neither never makes any.
    Losses at once after another say nothing of the program. JobSet's controller that has just lost its connection may
    hold the Jobs of an earlier submission for those of a resumed run: it deletes and creates pods until it sees anew.
    """
    losses: Counter[int] = Counter()
    iteration = checkpoint = -1
    for attempt in attempts:
        last = _number(attempt.get("last_iteration"))
        stored = max(_number(attempt.get("resumed_iteration")), _number(attempt.get("checkpoint_iteration")))
        if last > iteration or stored > checkpoint:
            losses.clear()
        iteration, checkpoint = max(iteration, last), max(checkpoint, stored)
        if attempt.get("elapsed", AT_ONCE) >= AT_ONCE:
            losses.update(attempt.get("lost_nodes") or ())
    nodes = [node for node, count in losses.items() if count >= MAX_LOSSES]
    return min(nodes) if nodes else None


def loss_reason(node: int) -> str:
    """The reason of a run that ended because *node* was lost repeatedly."""
    return (
        "node %d was lost %d times without notice and the run made no progress: if its pod or job exceeded its memory "
        "(`kubectl describe pod` shows OOMKilled, `sacct` OUT_OF_MEMORY), raise resources.memory and resume the run"
        % (node, MAX_LOSSES)
    )


def _rate(attempt: AttemptRecord) -> float:
    return (attempt["world"]["rate"] if "world" in attempt else None) or 0.0


def _allocated_since(attempt: AttemptRecord) -> float:
    return attempt.get("allocated", attempt["started"])


def _number(value: int | None) -> int:
    return -1 if value is None else int(value)
