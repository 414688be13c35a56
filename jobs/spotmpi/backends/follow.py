"""Follows a run until it ends; Ctrl-C stops it, a second Ctrl-C stops it without a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from spotmpi.core.events import Event

Watch = Callable[[Event], None]


def follow(events: Iterable[Event], watch: Watch) -> Event | None:
    """Pass every event to *watch*; returns the terminal event, None where the stream ends without one."""
    last = None
    for event in events:
        watch(event)
        last = event
    return last if last is not None and last.terminal else None


@contextmanager
def interrupts(stop: Callable[[bool], None]) -> Iterator[Callable[[], bool]]:
    """In the context, the first Ctrl-C calls stop(False), every further one stop(True).

    The context's value is a function that says whether Ctrl-C was pressed. *stop* runs in its own thread, since a
    signal may arrive in the middle of output. Outside the main thread, which alone gets signals, nothing changes.
    """
    pressed = 0
    calls: list[threading.Thread] = []

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        calls.append(threading.Thread(target=stop, args=(pressed > 1,)))
        calls[-1].start()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed > 0
    finally:
        signal.signal(signal.SIGINT, before)
        for call in calls:
            call.join()
