"""Removes everything that a test cluster put on this machine, however it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.testbed import cgroups
from tests.testbed.errors import TestbedError
from tests.testbed.policy_engine import has_rules, remove_rules
from tests.testbed.slot import Slot

_CNI_RESULTS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")


def clean(slot: Slot) -> None:
    """Remove the slot's processes, mounts, interface, control groups and files; TestbedError names what stays."""
    kill_programs(slot)
    cgroups.remove(slot.cgroup)
    _remove_shim_sockets(slot)
    _unmount_below(slot.folder)
    if Path(f"/sys/class/net/{slot.bridge}").exists():
        subprocess.run(["ip", "link", "delete", slot.bridge], check=True)
    remove_rules(slot)
    for path in (*_CNI_RESULTS.glob(f"{slot.bridge}-*"), *_dangling_log_links(slot)):
        path.unlink(missing_ok=True)
    shutil.rmtree(slot.folder, ignore_errors=True)
    if remaining := find(slot):
        raise TestbedError(f"test cluster {slot.index} could not be removed completely: {'; '.join(remaining)}")


def kill_programs(slot: Slot, limit: float = 10.0) -> None:
    """Kill the daemons and the containerd shims of the slot, and wait until they are gone with their locks."""
    pids = list(_programs_of(slot))
    cgroups.kill(pids)
    deadline = time.monotonic() + limit
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def find(slot: Slot) -> list[str]:
    """Return one line for each resource of the slot on this machine."""
    lines = [f"process {pid}" for pid in [*_programs_of(slot), *cgroups.processes(slot.cgroup)]]
    lines += [f"mount {point}" for point in _mounts_below(slot.folder)]
    lines += [f"interface {slot.bridge}"] if Path(f"/sys/class/net/{slot.bridge}").exists() else []
    lines += [f"packet filter rules of {slot.bridge}"] if has_rules(slot) else []
    lines += [f"folder {slot.folder}"] if slot.folder.exists() else []
    return lines


def _programs_of(slot: Slot) -> Iterator[int]:
    """Return the processes that have the slot's folder in their arguments: all daemons and all containerd shims."""
    mark = f"{slot.folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if mark in path.read_bytes() and pid != os.getpid():
                yield pid


def _runs(pid: int) -> bool:
    """Whether a process holds its files; its command line is gone before that."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _mounts_below(folder: Path) -> list[str]:
    """Return the mount points below the folder, the deepest first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True)


def _unmount_below(folder: Path) -> None:
    for point in _mounts_below(folder):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def _remove_shim_sockets(slot: Slot) -> None:
    """Remove the sockets that killed shims leave in containerd's fixed folder."""
    for note in slot.folder.glob("node-*/run/io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            Path(note.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)


def _dangling_log_links(slot: Slot) -> list[Path]:
    """Return the links that kubelets put into a fixed folder, as far as they point into the slot."""
    if not _LOG_LINKS.is_dir():
        return []
    return [path for path in _LOG_LINKS.iterdir() if path.is_symlink() and str(slot.folder) in str(path.readlink())]
