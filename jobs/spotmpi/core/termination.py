"""What ends a command from outside: SIGTERM, as a cancelled job of CI, and SIGHUP, as a closed terminal.

Either ends it with a shell's exit code for that signal, once what must not break off in the middle is finished.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """One of these signals has come; its name is `signal`."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number).name


@contextmanager
def raised_when_terminated() -> Iterator[None]:
    """In the context these signals raise `Terminated`.

    Not one that is ignored, as by nohup, or that somebody else handles. Outside the main thread, which alone gets
    signals, nothing changes.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in (signal.SIGTERM, signal.SIGHUP) if in_main and signal.getsignal(each) == signal.SIG_DFL]
    for each in handled:
        signal.signal(each, _raise)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
