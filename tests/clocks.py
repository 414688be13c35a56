"""Clocks that tests set: time passes only as they say, or while somebody sleeps."""

from __future__ import annotations

from spotmpi.agent.clock import Clock


class SetClock(Clock):
    """A machine's clocks, of which tests set the one that may be set (clock_settime(2)); the others only go on."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.unix, self.seconds = 1_795_000_000.0, seconds
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.unix + self.seconds

    def uptime(self) -> float:
        return self.seconds

    def elapsed(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds
