"""The control groups that hold all containers of one test cluster, under version 1 and 2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Of all containers of a cluster, as of eight processes of the machine: by default they have the time of a single one.
_WEIGHTS = {"cpu.shares": "8192", "cpu.weight": "800"}


def create(name: str) -> None:
    """Make the cgroup in every hierarchy, ready to hold the kubelet's own below it."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(parents=True, exist_ok=True)
        for each in [*reversed(group.relative_to(hierarchy).parents), group.relative_to(hierarchy)]:
            _open_to_children(hierarchy / each)
        for setting, weight in _WEIGHTS.items():
            if (group / setting).exists():
                (group / setting).write_text(weight)


def remove(name: str) -> None:
    """Kill every process in the cgroup and below, then remove it from every hierarchy."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        if group.is_dir():
            _kill_all(group)
            # Children first: a cgroup goes only when it is empty.
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def kill(pids: Iterable[int]) -> None:
    """Kill these processes, as far as they run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes(name: str) -> set[int]:
    """Return the ids of all processes in the cgroup and below."""
    return {pid for hierarchy in _hierarchies() for pid in _processes(hierarchy / name)}


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return sorted(path for path in _ROOT.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


def _open_to_children(group: Path) -> None:
    if (group / "cgroup.controllers").exists():
        for controller in (group / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
    # Under version 1 a new cpuset holds no processor at all, and nothing can run in it.
    for setting in ("cpuset.cpus", "cpuset.mems"):
        mine, parents = group / setting, group.parent / setting
        if mine.exists() and parents.exists() and not mine.read_text().strip():
            mine.write_text(parents.read_text())


def _processes(group: Path) -> set[int]:
    processes: set[int] = set()
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            processes.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
    # One in another PID namespace reads as 0, by which `kill` would end our own process group.
    return processes - {0}


def _kill_all(group: Path, limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while (processes := _processes(group)) and time.monotonic() < deadline:
        kill(processes)
        time.sleep(0.05)
