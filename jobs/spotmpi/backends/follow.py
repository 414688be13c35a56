"""Following a run until it ends, with Ctrl-C meaning stop and a second one meaning now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from spotmpi.core.events import Event

Watch = Callable[[Event], None]


def follow(events: Iterable[Event], watch: Watch) -> Event | None:
    """Hand every event to *watch* until there are no more; the terminal one, or None where the stream just ended."""
    last = None
    for event in events:
        watch(event)
        last = event
    return last if last is not None and last.terminal else None


@contextmanager
def interrupts(stop: Callable[[bool], None]) -> Iterator[Callable[[], bool]]:
    """While inside, Ctrl-C calls *stop* with False, any further one with True; the value tells whether there was one.

    *stop* runs in a thread of its own: a signal may come in the middle of any output. Outside the main thread, where
    signals cannot be taken, nothing changes.
    """
    pressed = 0
    calls: list[threading.Thread] = []

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        calls.append(threading.Thread(target=stop, args=(pressed > 1,)))
        calls[-1].start()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, take)
    try:
        yield lambda: pressed > 0
    finally:
        signal.signal(signal.SIGINT, before)
        for call in calls:
            call.join()
