"""The live processes of a run, from /proc."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def of_run(run: str) -> dict[int, str]:
    """The command line of every process that belongs to a run, by process id: its ranks and whatever they started."""
    mark = f"SPOTMPI_RUN={run}".encode()
    return {pid: command for pid, command, variables in _processes() if mark in variables.split(b"\0")}


def with_text(text: str) -> dict[int, str]:
    """The command line of every process in which this text is, by process id."""
    return {pid: command for pid, command, _ in _processes() if text in command}


def agents(folder: Path) -> list[int]:
    """The process ids of a run folder's agent: the guard, then the guarded process."""
    pids = [pid for pid, command, _ in _processes() if command.endswith(f"spotmpi.agent {folder}")]
    return sorted(pids, key=lambda pid: _parent(pid) in pids)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [each for each, _, _ in _processes() if _parent(each) == pid]


def are_gone(pids: Iterable[int]) -> bool:
    """Whether these processes have ended: a zombie, which nobody has reaped yet, has no command line."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():
                return False
    return True


def wait_until(look: Callable[[], T], limit: float = 60.0) -> T:
    """Poll *look* until its result is true, and return that; fails after *limit* seconds."""
    deadline = time.monotonic() + limit
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {limit} s"
        time.sleep(0.01)


def _processes() -> Iterator[tuple[int, str, bytes]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if command:  # a zombie has none
                yield int(folder.name), command, (folder / "environ").read_bytes()


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
