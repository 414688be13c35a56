"""Where one test cluster lives: a folder, an address range and a lock, so that several can run at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.testbed.errors import TestbedError

_SLOTS = 8
# Unix sockets below the folder must fit 107 bytes.
_LONGEST_FOLDER = 60


def cache_folder() -> Path:
    """Return the folder of this user that holds images and running test clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "spotmpi" / "testbed"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at *path* during the block, waiting for other sessions that hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Slot:
    """One of the places for a test cluster on this machine."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.folder = cache_folder() / f"slot-{index}"  # all files, sockets, mounts and logs of the cluster
        self.bridge = f"spotmpi{index}"  # the network interface that joins the pods
        self.network = f"10.213.{index}"  # the first three numbers of the pods' and nodes' /24 network
        self.gateway = f"{self.network}.1"  # the machine's own address on the bridge; cluster DNS listens there
        self.cgroup = f"spotmpi-testbed-{index}"  # below which all containers run, relative to each hierarchy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and other.index == self.index

    def __hash__(self) -> int:
        return self.index

    def node_address(self, node: int) -> str:
        """Return the address of a node, which is one more address of the machine on the bridge."""
        return f"{self.network}.{2 + node}"

    def pod_range(self, node: int) -> tuple[str, str]:
        """Return the first and the last address for pods of a node."""
        first = 20 + 100 * node
        return f"{self.network}.{first}", f"{self.network}.{first + 99}"

    def lock(self) -> IO[str] | None:
        """Return the held lock, or None where another cluster holds it; closing it, or our end, frees it."""
        path = cache_folder() / f"slot-{self.index}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        return handle

    def is_taken(self) -> bool:
        """Tell whether a cluster runs in this slot."""
        handle = self.lock()
        if handle:
            handle.close()
        return handle is None


def every_slot() -> list[Slot]:
    """Return all slots of this machine's user."""
    return [Slot(index) for index in range(_SLOTS)]


def take_slot() -> tuple[Slot, IO[str]]:
    """Return a free slot with its lock; TestbedError if all are taken or the folder's name is too long."""
    longest = every_slot()[0].folder
    if len(str(longest)) > _LONGEST_FOLDER:
        raise TestbedError(
            f"{longest} is longer than {_LONGEST_FOLDER} characters; set XDG_CACHE_HOME to a shorter folder"
        )
    for slot in every_slot():
        if handle := slot.lock():
            return slot, handle
    raise TestbedError(f"all {_SLOTS} test clusters are in use; stop some with `scripts/cluster stop --all`")
