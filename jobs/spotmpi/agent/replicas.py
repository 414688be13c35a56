"""Processes that are restarted each by itself, whatever happens to the others: the workers of pools and streams."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Dict, Tuple

from . import hardware
from .clock import Clock
from .plan import Command

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .transport import ReplicatedRole

STEADY = 5.0  # seconds after which a process that ends is started again at once
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds before the next start of one that ended earlier; they double


class Replicas:
    """The processes of *role*, which `tend` starts and starts again."""

    def __init__(self, role: ReplicatedRole, clock: Clock) -> None:
        self.role = role
        self.processes: Dict[int, subprocess.Popen[bytes]] = {}
        self._clock = clock
        self._started: Dict[int, float] = {}
        self._early_ends: Dict[int, int] = {}
        self._due: Dict[int, Tuple[float, str]] = {}  # when a process is started again, and why it ended
        self._oom_kills = hardware.oom_kills(role.cgroup)  # at the latest end of a process

    def tend(self, start: Callable[[Command], subprocess.Popen[bytes]], announce: Callable[[int, str], None]) -> None:
        """Start the processes that are missing and due, and end those that are to run no more.

        *announce* gets the number of a process that is started again, and how the one before it ended.
        """
        now, numbers = self._clock.awake(), self.role.numbers()
        for number, process in self.processes.items():
            if number not in numbers:
                process.terminate()
        for number in numbers if self.role.is_ready() else ():
            due, end = self._due.get(number, (now, ""))
            if number in self.processes or due > now:
                continue
            if end:
                announce(number, end)
            process = start(self.role.command(number))
            self.processes[number], self._started[number] = process, now
            self.role.started(number, process.pid)

    def ended(self, number: int, end: str, interrupted: bool) -> None:
        """Note that a process has ended, and how: *end* is a predicate."""
        del self.processes[number]
        now = self._clock.awake()
        early = self._early_ends.get(number, 0) + 1 if now - self._started[number] < STEADY else 0
        self._early_ends[number] = early
        pause = min(FIRST_PAUSE * 2.0 ** min(early - 1, 10), MAX_PAUSE) if early else 0.0
        self._due[number] = (now + max(pause, self.role.interruption_pause if interrupted else 0.0), end)

    def memory_reason(self, code: int) -> str:
        """That memory ran out, where the kernel has killed a process for it since this was called last."""
        before, self._oom_kills = self._oom_kills, hardware.oom_kills(self.role.cgroup)
        return " for lack of memory" if code == -signal.SIGKILL and self._oom_kills > before else ""
