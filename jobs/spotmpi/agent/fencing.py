"""Fencing: an agent whose attempt is no longer the newest of its run ends at once, and writes nothing more.

A pod that was deleted by force, or whose node does not answer, may go on beside the pod that replaces it, with the same
run folder. Whoever takes an attempt leaves its number in a file there. It is a file, because NFS asks the server when
one is opened (close-to-open consistency, nfs(5)), while the listing of a folder may be a minute old (``acdirmax``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

NEWEST = ".attempt"
INTERVAL = 1.0  # seconds between looks
FRESH = 2.0  # seconds for which a look holds; an agent that was frozen for longer looks again before it writes


class Fenced(Exception):
    """A newer attempt of the run has begun; the text says which."""


class Fence:
    """Looks for an attempt of the run in *folder* that is newer than *number*.

    A thread of its own looks, since a file system that hangs must not keep the agent from hearing the other nodes.
    """

    def __init__(self, folder: str, number: int) -> None:
        self._folder = folder
        self._number = self._newest = number
        self._looked = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="fence", daemon=True).start()

    def check(self) -> None:
        """Raise `Fenced` where a newer attempt has been seen."""
        if self._newest > self._number:
            raise Fenced("attempt %d has begun: attempt %d ends here and writes nothing" % (self._newest, self._number))

    def check_before_write(self, final: bool) -> None:
        """As `check`, after a look at the folder where the last one is too long ago, and always where it is *final*."""
        if final or time.monotonic() > self._looked + FRESH:
            self._look()
        self.check()

    def end(self) -> None:
        """No more looks."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        self._newest = max(self._newest, _left_number(self._folder), _listed_number(self._folder))
        self._looked = time.monotonic()


def leave_number(folder: str, number: int) -> None:
    """Let earlier agents of the run in *folder* know that attempt *number* has begun."""
    # Not renamed into place: readers that know the file find what it holds now.
    descriptor = os.open(os.path.join(folder, NEWEST), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, b"%d\n" % number)
    finally:
        os.close(descriptor)


def _left_number(folder: str) -> int:
    """The number in the file; 0 where it cannot be read: a disk that fails is no newer attempt."""
    try:
        with open(os.path.join(folder, NEWEST)) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _listed_number(folder: str) -> int:
    """The highest number that was taken; two who took one at once may have left theirs in either order."""
    with contextlib.suppress(OSError):
        return max((int(name) for name in os.listdir(os.path.join(folder, "attempts")) if name.isdecimal()), default=0)
    return 0
