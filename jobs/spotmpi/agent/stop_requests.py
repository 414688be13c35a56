"""What ends an attempt on node 0, and when: requests of users, notices, and what becomes of the other members.

Users request by files in the run folder, which any terminal may write, or by a pod's annotation. A notice is a signal,
which says that a machine is about to be taken away, or the finding that it is unfit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional

from . import protocol, record
from .clock import Clock
from .context import REQUESTS, AgentContext, Members, Mounts, stop_reason
from .files import exists, write_atomically
from .launch import change_reason
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, Deadlines, Outcome, StopRequest
from .plan import NODE, RunPlan, nodes_in, workers

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .progress import Progress

STOP = "stop"  # end after a checkpoint
KILL = "kill"  # end now

_CAUSES = {protocol.NOT_RETRYABLE: NOT_RETRYABLE, protocol.INTERRUPTED: INTERRUPTION}  # by exit code; others: FAILURE


class UserRequest(NamedTuple):
    """A request of a user, and why it was made."""

    kind: str  # `STOP` or `KILL`
    reason: Optional[str]


def path(folder: str, request: str) -> str:
    """The file in a run folder that stands for *request*."""
    return os.path.join(folder, REQUESTS, request)


def submit(folder: str, request: str, reason: str) -> None:
    """Request `STOP` or `KILL` of the agent of a run folder, with the reason; safe to call concurrently."""
    os.makedirs(os.path.join(folder, REQUESTS), exist_ok=True)
    write_atomically(path(folder, request), json.dumps({"reason": reason}))


def clear(folder: str) -> None:
    """Remove the requests to an earlier agent of a run folder, before a new one is started."""
    for request in (STOP, KILL):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path(folder, request))


def reason(folder: str) -> str | None:
    """The reason of the most urgent request in a run folder, or None."""
    return _reason(path(folder, KILL)) or _reason(path(folder, STOP))


def pending(mounts: Mounts, kinds: tuple[str, ...] = (KILL, STOP)) -> UserRequest | None:
    """The request that an agent with these *mounts* has to follow, the most urgent of *kinds*; or None."""
    if mounts.requests is not None:
        for kind in kinds:
            name = os.path.join(mounts.requests, kind)
            if file_exists(name):
                return UserRequest(kind, _reason(name))
    if mounts.pod_info is not None and STOP in kinds:
        reason = stop_reason(mounts.pod_info)
        return None if reason is None else UserRequest(STOP, reason)
    return None


def file_exists(name: str) -> bool | None:
    """Whether a file exists; None where a disk does not tell: the next poll asks again."""
    try:
        return exists(name)
    except OSError:
        return None


class PreemptionNotice:
    """Whether this process received a signal to end; ``reason`` says so, with *receiver* as the one that got it."""

    def __init__(self, receiver: str, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signal: int | None = None
        self._receiver = receiver
        self._given: str | None = None
        for number in signals:
            signal.signal(number, self._handle_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # one that came during the start (see `boot`) arrives now

    @property
    def reason(self) -> str | None:
        """What is about to end this process, or None."""
        if self._given is not None:
            return self._given
        return "%s received %s" % (self._receiver, signal.Signals(self._signal).name) if self._signal else None

    def give(self, reason: str) -> None:
        """Let this node leave the run for *reason*, as if it had received a signal."""
        self._given = reason

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number


class NoticedNodes:
    """Decides when an attempt ends in which other nodes than node 0 get notice.

    It ends as soon as pods that stand by can take the places of all of them, and at the latest when the first of them
    has only the margin of *plan* left for a checkpoint. *echo* gets a line for people that says so.
    """

    def __init__(self, plan: RunPlan, clock: Clock, echo: Callable[[str], None]) -> None:
        self._standby = bool(plan.get("standby"))
        self._grace = plan["grace"]
        self._going_on = self._grace - plan.get("margin", self._grace)
        self._clock = clock
        self._echo = echo
        self._until: Dict[str, float] = {}  # as `Clock.uptime` counts, by the name of a node

    def are_due(self, notices: Mapping[str, str], standby_ready: int) -> bool:
        """Whether *notices*, by the names of nodes, end the attempt now that so many pods stand by."""
        now = self._clock.uptime()
        new = [node for node in notices if node not in self._until]
        self._until.update((node, now + self._going_on) for node in new)
        if standby_ready >= len(notices) or now >= min(self._until[node] for node in notices):
            return True
        for node in new:
            text = "%s: %s; training goes on for %g s (checkpoint.grace less checkpoint.margin)"
            more = " or until a pod stands by that takes its place" if self._standby else ""
            self._echo(text % (node, notices[node], self._going_on) + more)
        return False

    @property
    def patience(self) -> float | None:
        """Seconds of the grace that are left to the first node that got notice; None where none has."""
        if not self._until:
            return None
        return max(0.0, min(self._until.values()) - self._going_on + self._grace - self._clock.uptime())


class CoordinatorStopSignal:
    """The `StopSignal` of node 0: everything it learns during an attempt, in the order of importance.

    Each poll also serves the members, and raises `Fenced` where a newer attempt has begun.
    """

    def __init__(
        self,
        context: AgentContext,
        members: Members,
        notice: PreemptionNotice,
        check_fence: Callable[[], None] = lambda: None,
        echo: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._context = context
        self._members = members
        self._notice = notice
        self._check_fence = check_fence
        self._noticed = NoticedNodes(context.plan, context.clock, echo)
        # Of the attempt, once its ranks are started, which go on for a while after a notice.
        self.progress: Progress | None = None
        self.deadlines = Deadlines()  # of the attempt

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        self._check_fence()
        self._members.serve(0)
        # The scheduler of a stream ends with node 0's launcher, once those of the other nodes have ended.
        remote = self._context.with_pods(self._members.pods).remote_launchers
        if remote and workers(self._context.plan) and len(nodes_in(self._members.ended)) == remote:
            with contextlib.suppress(OSError):  # it is tried again
                open(self._context.launchers_ended_file, "a", encoding="utf-8").close()
        requested = pending(self._context.mounts)
        if requested is not None:
            return StopRequest(Outcome(STOPPED, requested.reason), requested.kind == STOP)
        notice = self._notice_reason()
        if notice:
            return StopRequest(Outcome(INTERRUPTION, notice), True)
        failure = self._deletion() or self._lost_hosts() or self.launcher_failure()
        if failure:
            return StopRequest(failure, False)
        return self.deadlines.exceeded(self._context.plan, self._context.clock) or self._growth()

    def _growth(self) -> StopRequest | None:
        """The end, at a checkpoint, of an attempt that can go on with more nodes; a program without any stays."""
        size = self._members.larger_size()
        if size is None or self.progress is None or (self.progress.checkpoint or self.progress.resumed) is None:
            return None
        nodes = len(self._members.pods or ())
        return StopRequest(Outcome(INTERRUPTION, change_reason(nodes, size)), True)

    def _deletion(self) -> Outcome | None:
        """The end of a run on this machine whose folder is gone."""
        events = os.path.join(self._context.folder, record.EVENTS)
        if self._context.mounts.requests is None or file_exists(events) is not False:
            return None
        return Outcome(NOT_RETRYABLE, "the run folder was deleted")

    def patience(self) -> float | None:
        """Seconds of the grace that are left to the first node that got notice; None where none has."""
        return self._noticed.patience

    def kill_requested(self) -> bool:
        """Whether to end without a checkpoint; a pod is deleted for that. Members are served while the attempt ends."""
        self._check_fence()
        self._members.serve(0)
        return pending(self._context.mounts, (KILL,)) is not None

    def launcher_failure(self) -> Outcome | None:
        """How the launcher of another node failed, or None."""
        for node, (code, reason) in self._members.ended.items():
            if code:
                text = "%s: %s" % (self._members.name_of(node), reason)
                if code == protocol.KILLED:
                    return Outcome(FAILURE, text)
                return Outcome(_CAUSES.get(code, FAILURE), text, node=node.number if node.role == NODE else None)
        return None

    def interruption(self) -> Outcome | None:
        """How an attempt that has ended counts as interrupted, as far as is known now, or None."""
        self._members.serve(0.05)
        notice = self._notice_reason()
        return Outcome(INTERRUPTION, notice) if notice else self._lost_hosts()

    def lost_nodes(self) -> tuple[int, ...]:
        """The nodes that are lost and gave no notice."""
        lost = set(self._members.lost()) - set(self._members.notices)
        return tuple(sorted(node.number for node in lost))

    def _notice_reason(self) -> str | None:
        """Why the attempt is to end for a notice now, or None."""
        if self._notice.reason:
            return "node 0: %s" % self._notice.reason
        notices = self._members.notices
        names = {self._members.name_of(node): reason for node, reason in notices.items()}
        if not notices or (self.progress and not self._noticed.are_due(names, self._members.standby_ready)):
            return None
        return next("%s: %s" % item for item in names.items())

    def _lost_hosts(self) -> Outcome | None:
        lost = self._members.lost()
        if not lost:
            return None
        hosts = self._context.with_pods(self._members.pods).hosts
        names = [hosts[node.number] if self._context.is_supervised else self._members.name_of(node) for node in lost]
        reason = "lost %s" % ", ".join(names)
        return Outcome(INTERRUPTION, reason, self.lost_nodes())


def _reason(name: str) -> str | None:
    try:
        with open(name, encoding="utf-8") as file:
            return str(json.load(file)["reason"])
    except (OSError, ValueError, KeyError, TypeError):  # written by hand, it may say anything
        return None
