"""Starts a launcher such that none of its processes can outlive this one, and ends all of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from . import rank_wrapper
from .clock import CLOCK, Clock

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
LOOK_INTERVAL = 10.0  # seconds between looks at the processes of ranks
# Of a processor, what a rank at least uses that is busy, and at most one that is idle: in MPI_Finalize a rank of Open
# MPI 5 polls for the others with 0.03 of one.
_BUSY, _IDLE = 0.2, 0.1
_IS_BUSY, _IS_IDLE, _IS_NEITHER = "busy", "idle", ""
_MAX_COMMAND = 80  # characters
LEFT_BEHIND = "%s still ran when the ranks that had started it had ended: it was killed"
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
    return _below(_parents())


def _below(parents: Iterable[Tuple[int, int]]) -> list[int]:
    """Those of processes with their parents that are descendants of this one, each after its parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents:
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


def mortal_descendants() -> list[int]:
    """The ids of all descendants but those `exempt`."""
    return [pid for pid in descendants() if pid not in exempt]


def kill_descendants() -> None:
    """Kill and reap all descendants but those `exempt`, for some seconds."""
    deadline = CLOCK.uptime() + _KILL_LIMIT
    while True:
        left = mortal_descendants()
        for pid in left:
            signal_process(pid, signal.SIGKILL)
        # No Popen object waits for these.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or CLOCK.uptime() > deadline:
            return
        CLOCK.sleep(0.01)


def reap_orphans() -> None:
    """Reap orphans that have ended: a process that adopts them keeps each until then, and a pod may have only so many.

    These are not what this process starts itself: that is in its session, or begins one (Linux).
    """
    own, session = os.getpid(), os.getsid(0)
    for each in _processes() if sys.platform.startswith("linux") else ():
        if each.state == "Z" and each.parent == own and each.session not in (session, each.pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


class RankWatch:
    """Looks now and then at the ranks on this machine, which takes 2 ms per hundred processes (Linux).

    *variable* has the number of a rank in the environment of its processes. The numbers of all are *expected*, or are
    those that are seen.
    """

    def __init__(self, clock: Clock, variable: str = "OMPI_COMM_WORLD_RANK", expected: Iterable[int] = ()) -> None:
        self._clock = clock
        self._pattern = b"\0%s=(\\d{1,9})\0" % variable.encode()
        self._sees_ranks = sys.platform.startswith("linux") and variable not in os.environ
        self._looked = clock.uptime()
        self.states: Dict[int, str] = {}  # of each rank on this machine
        self._known: Set[int] = set(expected)
        self._times: Dict[int, float] = {}  # processor seconds of each rank on this machine
        self._stray: Set[int] = set()  # left by ranks of which none was there any more at the last look
        # Ranks that had ended while others ran, or were idle while others were busy, and when that was seen first.
        self._gone: Dict[int, float] = {}
        self._idle: Dict[int, float] = {}

    def look(self, launchers: Collection[int], elsewhere: Iterable[Mapping[int, str]] = ()) -> List[str]:
        """Look if that is due; the processes that were killed because ranks had left them behind.

        The states of ranks *elsewhere* are those that watches on other machines have found.

        No rank is left here then: mpirun waits for whatever holds its output open. Slurm kills what is left of a step,
        and Kubernetes of a container. Of the children of this process only *launchers* can be ranks.
        """
        now = self._clock.uptime()
        if now < self._looked + LOOK_INTERVAL:
            return []
        passed, self._looked = now - self._looked, now
        reap_orphans()
        found = {each.pid: each for each in _processes() if each.state != "Z"} if self._sees_ranks else {}
        below = _below((each.pid, each.parent) for each in found.values())
        ranks = {pid: rank for pid in below if (rank := self._rank(pid)) is not None}
        stray: Set[int] = set()
        times: Dict[int, float] = {}
        for pid, rank in ranks.items():
            parent = found[pid].parent
            if parent in stray or (parent == os.getpid() and pid not in launchers):
                stray.add(pid)
            else:
                times[rank] = times.get(rank, 0.0) + found[pid].seconds
        self._compare(times, passed, elsewhere)
        stray = set() if times else stray
        left, self._stray = sorted(self._stray & stray), stray
        names = [name(pid) for pid in left]
        for pid in left:
            signal_process(pid, signal.SIGKILL)
        return names

    def lone_rank(self, patience: float) -> Optional[str]:
        """The rank that has ended, or does nothing, for *patience* seconds while others run, as a part of a message."""
        for ranks, what in ((self._gone, "has ended"), (self._idle, "hardly uses its processor, as in MPI_Finalize,")):
            for rank, found in sorted(ranks.items()):
                if self._looked - found >= patience:
                    return "rank %d %s while others run" % (rank, what)
        return None

    def _compare(self, times: Dict[int, float], passed: float, elsewhere: Iterable[Mapping[int, str]]) -> None:
        """Note which ranks have ended, or were idle, since the last look *passed* seconds ago."""
        shares = {rank: (seconds - self._times.get(rank, 0.0)) / passed for rank, seconds in times.items()}
        self.states = {
            rank: _IS_BUSY if share >= _BUSY else _IS_IDLE if share <= _IDLE else _IS_NEITHER
            for rank, share in shares.items()
        }
        states = {rank: state for each in (*elsewhere, self.states) for rank, state in each.items()}
        ended = [rank for rank in self._known if states and rank not in states]
        others_work = _IS_BUSY in states.values()
        idle = [rank for rank, state in states.items() if others_work and state == _IS_IDLE]
        self._gone = {rank: self._gone.get(rank, self._looked) for rank in ended}
        self._idle = {rank: self._idle.get(rank, self._looked) for rank in idle}
        self._known.update(states)
        self._times.update(times)

    def _rank(self, pid: int) -> Optional[int]:
        """The number of the rank that has started a process, or is it."""
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                number = re.search(self._pattern, b"\0" + file.read())
        except OSError:  # it has ended, or is another user's
            return None
        return int(number.group(1)) if number else None


def name(pid: int) -> str:
    """A process in messages: the beginning of its command line, where Linux tells that, and its number."""
    words = ""
    with contextlib.suppress(OSError):
        with open("/proc/%d/cmdline" % pid, encoding="utf-8", errors="replace") as file:
            words = file.read().replace("\0", " ").strip()[:_MAX_COMMAND]
    return "%s (process %d)" % (words or "a program", pid)


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
    yield from ((each.pid, each.parent) for each in _processes() if each.state != "Z")


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    seconds: float  # of a processor


def _processes() -> Iterator[_Process]:
    """All processes (Linux)."""
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                    values = file.read().rpartition(")")[2].split()
                seconds = (int(values[11]) + int(values[12])) * tick  # proc_pid_stat(5): utime, stime
                yield _Process(int(name), values[0], int(values[1]), int(values[3]), seconds)
