"""The notice that an agent gets before its machine, or it alone, is taken away: a signal."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType


class Notice:
    """Whether this process received a signal to end; ``reason`` says so, with *receiver* as the one that got it."""

    def __init__(self, receiver: str, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signal: int | None = None
        self._receiver = receiver
        for number in signals:
            signal.signal(number, self._handle_signal)

    @property
    def reason(self) -> str | None:
        """What is about to end this process, or None."""
        return "%s received %s" % (self._receiver, signal.Signals(self._signal).name) if self._signal else None

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
