"""What rank 0 is told from outside while it trains: SIGUSR1 for a checkpoint, SIGTERM for a checkpoint and the end."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from spotmpi.programs.ending import STOPPED, leave

# Rank 0 needs the others to finish its iteration before it can write; after this long they leave by themselves.
_OTHERS_STAY = 20.0


class Notices:
    """Signals become flags, which rank 0 reads between iterations.

    *act* is called with whether the job is to end; `between_iterations` calls it when a signal has come.
    """

    def __init__(self, act: Callable[[bool], None], pid_file: Path | None = None) -> None:
        self._act = act
        self._pid_file = pid_file
        self._asked = False
        self._ending = False
        self._unchanging = False

    def listen(self) -> None:
        """Take the signals from now on, and then write the pid file that tells the agent so."""
        signal.signal(signal.SIGUSR1, self._take)
        signal.signal(signal.SIGTERM, self._take)
        if self._pid_file:
            aside = self._pid_file.with_name(f".{self._pid_file.name}.{os.getpid()}")
            aside.write_text(f"{os.getpid()}\n")
            aside.replace(self._pid_file)

    def between_iterations(self) -> None:
        """Act on a signal that came during the iteration."""
        if self._asked:
            self._asked = False
            self._act(self._ending)

    @contextmanager
    def parameters_unchanging(self) -> Iterator[None]:
        """A stretch, such as an evaluation, in which a signal is acted on at once instead of at its end."""
        self.between_iterations()
        self._unchanging = True
        try:
            yield
        finally:
            self._unchanging = False
        self.between_iterations()

    def close(self) -> None:
        """Withdraw the pid file; later signals have their usual meaning, except that SIGUSR1 does nothing."""
        if self._pid_file:
            with suppress(OSError):
                self._pid_file.unlink()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._ending = self._ending or number == signal.SIGTERM
        if self._unchanging:
            self._unchanging = False  # a second signal waits until this one is done
            self.between_iterations()
            self._unchanging = True


def let_rank_zero_finish() -> None:
    """For every other rank: ignore SIGUSR1, and on SIGTERM stay long enough for rank 0 to write its checkpoint."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_later)


def _leave_later(number: int, frame: FrameType | None) -> None:
    timer = threading.Timer(_OTHERS_STAY, leave, [STOPPED])
    timer.daemon = True
    timer.start()
