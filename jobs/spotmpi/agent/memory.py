"""What the kernel says of this pod's memory."""

from __future__ import annotations

import os

CGROUP = "/sys/fs/cgroup"
_COUNTS = ("memory.events", "memory/memory.oom_control")  # of cgroup version 2, of version 1


def ran_out() -> bool:
    """Whether the kernel has killed a process of this pod for want of memory; False where it does not tell."""
    for name in _COUNTS:
        try:
            with open(os.path.join(CGROUP, name)) as file:
                said = dict(line.split() for line in file)
            return int(said.get("oom_kill", 0)) > 0
        except (OSError, ValueError):
            continue
    return False


def left() -> int | None:
    """Bytes that this pod may still use; None where it has no limit, or none that can be read."""
    try:
        with open(os.path.join(CGROUP, "memory.max")) as limit:
            most = int(limit.read())
        with open(os.path.join(CGROUP, "memory.current")) as used:
            return most - int(used.read())
    except (OSError, ValueError):
        return None
