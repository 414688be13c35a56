"""Processes that are restarted each by itself, whatever happens to the others: the workers of pools and streams."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Dict, Set, Tuple

from . import hardware
from .clock import Clock
from .plan import Command, Member

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .transport import ReplicatedRole

STEADY = 5.0  # seconds after which a process that ends is started again at once
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds before the next start of one that ended earlier; they double


class Replicas:
    """The processes of *role*, which `supervise` starts and starts again."""

    def __init__(self, role: ReplicatedRole, clock: Clock) -> None:
        self.role = role
        self.processes: Dict[Member, subprocess.Popen[bytes]] = {}
        self._clock = clock
        self._started: Dict[Member, float] = {}
        self._early_ends: Dict[Member, int] = {}
        self._removed: Set[Member] = set()  # that end because they are to run no more
        self._due: Dict[Member, Tuple[float, str]] = {}  # when a process is started again, and why it ended
        self._oom_kills = hardware.oom_kills(role.cgroup)  # at the latest end of a process

    def supervise(
        self, start: Callable[[Command], subprocess.Popen[bytes]], announce: Callable[[Member, str], None]
    ) -> None:
        """Start the processes that are missing and due, and end those that are to run no more.

        *announce* gets the member whose process is started again, and how the one before it ended.
        """
        now, members = self._clock.uptime(), self.role.members()
        for member in self.processes.keys() - set(members):
            self.processes[member].terminate()
            self._removed.add(member)
        for member in members if self.role.is_ready() else ():
            due, end = self._due.get(member, (now, ""))
            if member in self.processes or due > now:
                continue
            if end:
                announce(member, end)
            process = start(self.role.command(member))
            self.processes[member], self._started[member] = process, now
            self.role.started(member, process.pid)

    def ended(self, member: Member, end: str, interrupted: bool) -> None:
        """Note that a process has ended, and how: *end* is a predicate."""
        del self.processes[member]
        if member in self._removed:
            self._removed.remove(member)
            self._due.pop(member, None)  # of an earlier process
            return
        now = self._clock.uptime()
        early = self._early_ends.get(member, 0) + 1 if now - self._started[member] < STEADY else 0
        self._early_ends[member] = early
        pause = min(FIRST_PAUSE * 2.0 ** min(early - 1, 10), MAX_PAUSE) if early else 0.0
        self._due[member] = (now + max(pause, self.role.interruption_pause if interrupted else 0.0), end)

    def memory_reason(self, code: int) -> str:
        """That memory ran out, where the kernel has killed a process for it since this was called last."""
        before, self._oom_kills = self._oom_kills, hardware.oom_kills(self.role.cgroup)
        return " for lack of memory" if code == -signal.SIGKILL and self._oom_kills > before else ""
