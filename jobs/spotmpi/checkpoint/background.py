"""Writes one checkpoint at a time to the volume while training goes on, from a copy of the state in memory."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

from spotmpi.agent import hardware
from spotmpi.checkpoint.device import DeviceArray
from spotmpi.checkpoint.state import Part, bytes_of

_PIECE = 1 << 20  # bytes between two looks whether to go on


class Written(NamedTuple):
    """The end of a checkpoint to the volume: its folder, or the problem that prevented it, and how long it took."""

    iteration: int
    path: str
    seconds: float
    problem: Optional[OSError] = None


class Dropped(Exception):
    """Another checkpoint is to be written instead."""


class Background:
    """A thread that writes a checkpoint, if there is one."""

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None
        self._dropped = threading.Event()
        self._iteration = 0
        self._since = 0.0

    def under_way(self) -> Optional[Tuple[int, float]]:
        """The iteration of the checkpoint that is being written, and the seconds so far."""
        if self._thread is None or not self._thread.is_alive():
            return None
        return self._iteration, time.monotonic() - self._since

    def start(self, iteration: int, copy: List[Part], write: Callable[[Iterator[memoryview]], None]) -> None:
        """Let *write* write the pieces of *copy*; the one before has ended."""
        self._iteration, self._since, self._dropped = iteration, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=write, args=(_pieces(copy, self._dropped),), name="checkpoint")
        self._thread.start()

    def make_way(self, iteration: int) -> None:
        """Drop the checkpoint under way, for another one of *iteration*; one of the same iteration is finished."""
        if self._thread is None:
            return
        if self._iteration == iteration:
            self._thread.join()
        else:
            self._dropped.set()  # a call that waits for the volume goes on, and nobody waits for it


def copied(parts: List[Part]) -> Optional[List[Part]]:
    """A copy of all *parts*, in order; None where memory does not suffice for it. Those on a GPU are copies already."""
    if sum(map(len, parts)) > _available_memory():
        return None
    return [part if isinstance(part, DeviceArray) else memoryview(bytes(part)) for part in parts]


def _pieces(copy: List[Part], dropped: threading.Event) -> Iterator[memoryview]:
    """The pieces of *copy*; `Dropped` once nobody wants them any more."""
    for part in copy:
        view = bytes_of(part)
        for start in range(0, len(view), _PIECE):
            if dropped.is_set():
                raise Dropped
            yield view[start : start + _PIECE]
    if dropped.is_set():
        raise Dropped


def _available_memory() -> float:
    """Bytes that this process may still use, by the limit of its cgroup and by what the machine has."""
    allowed, free = hardware.available_memory(hardware.own_cgroup()), None
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        free = re.search(r"^MemAvailable:\s*(\d+) kB$", file.read(), re.MULTILINE)
    unlimited = float("inf")
    return min(unlimited if allowed is None else allowed, 1024 * int(free.group(1)) if free else unlimited)
