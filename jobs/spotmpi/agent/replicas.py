"""Processes that are restarted each by itself, whatever happens to the others: the workers of pools and streams."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from typing import Dict, Set, Tuple

from . import hardware
from .context import AgentContext
from .files import write_atomically
from .launch import ADDRESS, Location, size_file, worker_command
from .plan import COORDINATOR, WORKERS, Command, Member, RunPlan, read_member, workers

STEADY = 5.0  # seconds after which a process that ends is started again at once
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds before the next start of one that ended earlier; they double
SCHEDULER_GRACE = 2.0  # seconds in which node 0 follows its scheduler
_PID = ".pid"  # end of the names of files in the control folder: the process of a worker


class Replicas:
    """The workers that the agent of *context* runs: the one of its pod, or all of a pool or stream on this machine.

    There *location* has a control folder, in which a `size_file` says how many there are of each role. `supervise`
    starts their processes, and starts them again.
    """

    def __init__(self, context: AgentContext, location: Location) -> None:
        self.processes: Dict[Member, subprocess.Popen[bytes]] = {}
        self._context, self._location, self._control = context, location, location.control
        self._clock, self._cgroup = context.clock, context.mounts.cgroup
        self._has_code: Set[Member] = set()  # in a folder of its own
        self._started: Dict[Member, float] = {}
        self._early_ends: Dict[Member, int] = {}
        self._removed: Set[Member] = set()  # that end because they are to run no more
        self._due: Dict[Member, Tuple[float, str]] = {}  # when a process is started again, and why it ended
        self._oom_kills = hardware.oom_kills(self._cgroup)  # at the latest end of a process
        if self._control is not None:  # what an earlier attempt has left there
            for name in (ADDRESS, *map(size_file, WORKERS)):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self._control, name))

    def members(self) -> Collection[Member]:
        """Those whose processes are to run now."""
        if self._control is None:
            return (self._context.member,)
        counts = worker_counts(self._context.plan, self._control)
        return [Member(role, number) for role, count in counts.items() for number in range(count)]

    def label(self, member: Member) -> str:
        """What stands before the reason for which a process can never work: of a pod's worker node 0 names it."""
        return "" if self._control is None else "%s: " % (member,)

    def supervise(
        self, start: Callable[[Command], subprocess.Popen[bytes]], announce: Callable[[Member, str], None]
    ) -> None:
        """Start the processes that are missing and due, and end those that are to run no more.

        *announce* gets the member whose process is started again, and how the one before it ended.
        """
        now, members = self._clock.uptime(), self.members()
        for member in self.processes.keys() - set(members):
            self.processes[member].terminate()
            self._removed.add(member)
        for member in members if self._is_ready() else ():
            due, end = self._due.get(member, (now, ""))
            if member in self.processes or due > now:
                continue
            if end:
                announce(member, end)
            process = start(self._command(member))
            self.processes[member], self._started[member] = process, now
            if self._control is not None:  # for faults that are injected
                write_atomically(os.path.join(self._control, member.file + _PID), str(process.pid))

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
        if interrupted and self._control is None:  # node 0 may be about to end the attempt
            pause = max(pause, SCHEDULER_GRACE)
        self._due[member] = (now + pause, end)

    def memory_reason(self, code: int) -> str:
        """That memory ran out, where the kernel has killed a process for it since this was called last."""
        before, self._oom_kills = self._oom_kills, hardware.oom_kills(self._cgroup)
        return " for lack of memory" if code == -signal.SIGKILL and self._oom_kills > before else ""

    def _is_ready(self) -> bool:
        """Whether processes may be started: in a pod they wait for the scheduler themselves, here once it listens.

        Its launcher removes the address before it ends it.
        """
        return self._control is None or os.path.exists(os.path.join(self._control, ADDRESS))

    def _command(self, member: Member) -> Command:
        """A worker, on one machine in a folder of its own, in which it finds what calls wrote to earlier processes."""
        plan = self._context.plan
        if self._control is None:
            return worker_command(plan, member, self._location, plan["folder"])
        folder = os.path.join(self._control, member.file)
        if member not in self._has_code:
            _copy(os.path.join(self._context.folder, "code"), folder)
            self._has_code.add(member)
        return worker_command(plan, member, self._location, folder)


def worker_counts(plan: RunPlan, control: str) -> Dict[str, int]:
    """How many workers of each role are requested in the folder *control*, by default as many as in the plan."""
    counts = {name: role["count"] for name, role in workers(plan).items()}
    for name in counts:
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(control, size_file(name)), encoding="utf-8") as file:
                counts[name] = max(1, int(file.read()))
    return counts


def process_ids(control: str) -> Iterator[tuple[Member, int]]:
    """The process ids of a pool's scheduler, as that of node 0, and of each worker here, from its control folder."""
    import json

    for name in sorted(os.listdir(control)):
        stem, end = os.path.splitext(name)
        try:
            with open(os.path.join(control, name), encoding="utf-8") as file:
                if name == ADDRESS:
                    yield COORDINATOR, int(json.load(file)["process"])
                elif end == _PID:
                    yield read_member(stem.replace("-", "/")), int(file.read())
        except (OSError, ValueError, KeyError):
            continue


def _copy(source: str, target: str) -> None:
    """Copy what *source* has to *target*, over what an earlier attempt left there; the rest of that stays."""
    import shutil  # delays no start

    def links(folder: str, names: list[str]) -> list[str]:
        existing = os.path.join(target, os.path.relpath(folder, source))
        return [name for name in names if os.path.islink(os.path.join(existing, name))]  # which it cannot replace

    shutil.copytree(source, target, symlinks=True, ignore=links, dirs_exist_ok=True)
