"""Starts a launcher such that none of its processes can outlive this one, and ends all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Set, Tuple

from . import rank_wrapper
from .clock import CLOCK, Clock

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
ORPHANS_INTERVAL = 10.0  # seconds between looks for orphans that have ended
_KILL_LIMIT = 5.0  # seconds in which killed processes end, unless the kernel keeps them
exempt: Set[int] = set()  # ids of processes, without their descendants, that `kill_descendants` leaves


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants (a subreaper), so that `descendants` finds them (Linux)."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def protect_output() -> None:
    """Keep other processes of this user away from this one's output, memory and environment (Linux).

    The program of a run has the user of its pod's agent, and could print entries of an agent by ``/proc/1/fd/1``. Files
    of a process that is not dumpable belong to root there (proc(5)), and reading them takes CAP_SYS_PTRACE (ptrace(2)).
    Programs that this process starts are dumpable again (prctl(2), PR_SET_DUMPABLE).
    """
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def run_guarded(work: Callable[[], int]) -> int:
    """The exit code of *work*, run in a child; however that ends, nothing that it started outlives it (Linux).

    A process that is killed cannot clean up: this one stays to do it, and forwards signals until then.
    """
    adopt_orphans()
    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # one that came now would end this process alone
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = 1
        try:
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    for number in forwarded:
        signal.signal(number, lambda received, frame: signal_process(child, received) and None)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = os.waitpid(child, 0)[1]
    kill_descendants()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def start(arguments: list[str], environment: dict[str, str], folder: str) -> subprocess.Popen[bytes]:
    """Start a launcher in its own session, with its output on two pipes; it gets SIGTERM when this process dies."""
    return subprocess.Popen(
        arguments,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: rank_wrapper.die_with_parent(signal.SIGTERM),
    )


def descendants() -> list[int]:
    """The process ids of all descendants of this process, except zombies."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    below: list[int] = []
    queue = [os.getpid()]
    while queue:
        direct = children.get(queue.pop(), [])
        below += direct
        queue += direct
    return below


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send *number* to the process group of a launcher; nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def signal_process(pid: int, number: int) -> bool:
    """Send *number* to one process; False when it is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_descendants() -> list[int]:
    """Kill and reap all descendants but those `exempt`, for some seconds; the ids of those that are left."""
    deadline = CLOCK.uptime() + _KILL_LIMIT
    while True:
        left = [pid for pid in descendants() if pid not in exempt]
        for pid in left:
            signal_process(pid, signal.SIGKILL)
        # No Popen object waits for these.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or CLOCK.uptime() > deadline:
            return left
        CLOCK.sleep(0.01)


def reap_orphans() -> None:
    """Reap orphans that have ended: a process that adopts them keeps each until then, and a pod may have only so many.

    These are not what this process starts itself: that is in its session, or begins one (Linux).
    """
    own, session = os.getpid(), os.getsid(0)
    for pid, state, parent, of_session in _processes() if sys.platform.startswith("linux") else ():
        if state == "Z" and parent == own and of_session not in (session, pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Reaper:
    """Calls `reap_orphans` now and then: a look at all processes takes 2 ms per hundred of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = clock.uptime() + ORPHANS_INTERVAL

    def reap(self) -> None:
        """Call it if it is due."""
        if self._clock.uptime() >= self._due:
            reap_orphans()
            self._due = self._clock.uptime() + ORPHANS_INTERVAL


def clear_shared_memory(folder: str | None) -> None:
    """Remove the files in *folder* that killed ranks have left, which take memory; not those of spotmpi."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder) if folder is not None else ():
            if not entry.name.startswith("spotmpi"):
                with contextlib.suppress(OSError):  # of a folder, or of another user
                    os.unlink(entry.path)


def _parents() -> Iterator[tuple[int, int]]:
    """Each process of this machine that is not a zombie, with its parent."""
    if not os.path.isdir("/proc/self"):
        listing = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
        for line in listing.stdout.splitlines():
            pid, parent, state = line.split()[:3]
            if not state.startswith("Z"):
                yield int(pid), int(parent)
        return
    for process, status, above, _ in _processes():
        if status != "Z":
            yield process, above


def _processes() -> Iterator[Tuple[int, str, int, int]]:
    """The id, state, parent and session of all processes (Linux)."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                    state, parent, _, session = file.read().rpartition(")")[2].split()[:4]
                yield int(name), state, int(parent), int(session)
