"""The notice that an agent gets before its machine, or it alone, is taken away: a signal, or that it is unfit."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType


class Notice:
    """Whether this process received a signal to end; ``reason`` says so, with *receiver* as the one that got it."""

    def __init__(self, receiver: str, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signal: int | None = None
        self._receiver = receiver
        self._given: str | None = None
        for number in signals:
            signal.signal(number, self._handle_signal)

    @property
    def reason(self) -> str | None:
        """What is about to end this process, or None."""
        if self._given is not None:
            return self._given
        return "%s received %s" % (self._receiver, signal.Signals(self._signal).name) if self._signal else None

    def give(self, reason: str) -> None:
        """Let this node leave the run for *reason*, as if it had received a signal."""
        self._given = reason

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
