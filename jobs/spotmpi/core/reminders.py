"""Messages about what takes long and says nothing itself: from time to time, or once what a wait is for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotmpi.core.wording import Echo

INTERVAL = 30.0  # seconds between messages
QUIET = 3.0  # seconds of a wait about which nothing is said
LONG_QUIET = 10.0  # the same for what takes some seconds now and then, as AWS, a registry or Pulumi


@contextmanager
def reminders(text: Callable[[float], str], echo: Echo, first: float | None = None) -> Iterator[None]:
    """Print by *echo*, while in the context, what *text* says of something that has gone on for so many seconds.

    The first time is after the seconds *first*, by default as many as lie between two.
    """
    ended, begun = threading.Event(), time.monotonic()

    def remind() -> None:
        pause = INTERVAL if first is None else first
        while not ended.wait(pause):
            echo(text(time.monotonic() - begun))
            pause = INTERVAL

    thread = threading.Thread(target=remind, name="reminders", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Wait:
    """A wait of at most *limit* seconds; *echo* gets once what it is for, after the first few seconds."""

    def __init__(self, limit: float, echo: Echo) -> None:
        self._limit, self._echo, self._begun, self._is_named = limit, echo, time.monotonic(), False

    def is_over(self, what: str) -> bool:
        """Whether it has reached its limit; *what* it waits for is a clause such as ``job 7 has ended``."""
        waited = time.monotonic() - self._begun
        if waited > QUIET and not self._is_named:
            self._is_named = True
            self._echo(f"waiting until {what} (gives up after {self._limit:g} s)")
        return waited > self._limit
