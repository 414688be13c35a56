"""Fencing: an agent whose attempt is no longer the newest of its run exits at once, and writes nothing more.

A pod that was deleted by force, or whose node does not answer, may go on in parallel with the pod that replaces it, in
the same run folder. An agent that takes an attempt writes its number to a file there. It is a file, because NFS asks
the server when one is opened (close-to-open consistency, nfs(5)), while the listing of a folder may be a minute old
(``acdirmax``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from .clock import CLOCK, Clock

NEWEST = ".attempt"
INTERVAL = 1.0  # seconds between checks
MAX_AGE = 2.0  # seconds for which a check is valid; an agent that was frozen for longer checks again before it writes


class Fenced(Exception):
    """A newer attempt of the run has begun; the text names it."""


class Fence:
    """Knows whether an attempt of the run in *folder* is newer than *number*."""

    def __init__(self, folder: str, number: int, clock: Clock = CLOCK) -> None:
        self._folder = folder
        self._clock = clock
        self._number = self._newest = number
        self._refreshed = self._clock.uptime()
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Watch from now on.

        A thread of its own does, since a file system that hangs must not keep the agent from receiving messages.
        """
        threading.Thread(target=self._watch, name="fence", daemon=True).start()

    def check(self) -> None:
        """Raise `Fenced` where a newer attempt has been seen."""
        if self._newest > self._number:
            raise Fenced("attempt %d has begun: attempt %d exits without writing" % (self._newest, self._number))

    def check_before_write(self, final: bool) -> None:
        """As `check`, after reading the folder again where the last time is too long ago, and always where *final*.

        Raises:
            OSError: the folder could not be read, and who cannot know whether a newer attempt has begun writes nothing.
        """
        is_old = final or self._clock.uptime() > self._refreshed + MAX_AGE
        error = self.refresh() if is_old else None
        self.check()
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.refresh()

    def refresh(self) -> OSError | None:
        """Read the folder; the error if that failed, after which the last time still counts."""
        failure = None
        for read in (_number_in_file, _highest_number):
            try:
                self._newest = max(self._newest, _repeated(read, self._folder))
            except OSError as error:
                failure = error
        if failure is None:
            self._refreshed = self._clock.uptime()
        return failure


def announce(folder: str, number: int) -> None:
    """Tell earlier agents of the run in *folder* that attempt *number* has begun."""
    # Not renamed into place: readers with an open handle see the new content.
    descriptor = os.open(os.path.join(folder, NEWEST), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, b"%d\n" % number)
    finally:
        os.close(descriptor)


def newest(folder: str) -> int:
    """The number of the newest attempt of the run in *folder*, as far as can be read."""
    number = 0
    for read in (_number_in_file, _highest_number):
        with contextlib.suppress(OSError):
            number = max(number, read(folder))
    return number


def _repeated(read: Callable[[str], int], folder: str) -> int:
    """What *read* gives, at the second try where the first one fails: a stale handle is replaced by then."""
    try:
        return read(folder)
    except OSError:
        return read(folder)


def _number_in_file(folder: str) -> int:
    """The announced number; 0 where there is none."""
    try:
        with open(os.path.join(folder, NEWEST), encoding="utf-8") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def _highest_number(folder: str) -> int:
    """The highest number that was taken; two agents that took one at once may have announced them in either order."""
    with contextlib.suppress(FileNotFoundError):
        return max((int(name) for name in os.listdir(os.path.join(folder, "attempts")) if name.isdecimal()), default=0)
    return 0
