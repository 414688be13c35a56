"""Messages from time to time that something goes on which takes long, and says nothing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotmpi.core.wording import Echo

INTERVAL = 30.0  # seconds between messages


@contextmanager
def reminders(text: Callable[[float], str], echo: Echo) -> Iterator[None]:
    """Print by *echo*, while in the context, what *text* says of something that has gone on for so many seconds."""
    ended, begun = threading.Event(), time.monotonic()

    def remind() -> None:
        while not ended.wait(INTERVAL):
            echo(text(time.monotonic() - begun))

    thread = threading.Thread(target=remind, name="reminders", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
