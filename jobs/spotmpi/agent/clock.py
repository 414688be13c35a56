"""The clocks of an agent: one for people, and two that nobody sets, for everything that is measured or compared.

Agents get their clock as an argument; only this file asks the machine for a time, or waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import selectors

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Unix time when called, which only records show; `uptime` for limits and rates, `elapsed` for cost.

    Unix time may be set at any moment, by NTP or when a machine wakes up: the difference of two such times is no
    duration.
    """

    def __call__(self) -> float:
        """Unix seconds."""
        return time.time()

    def uptime(self) -> float:
        """Seconds since some moment in which this machine was not suspended.

        A machine that sleeps does nothing for a run, and must not fail it for that. Android's SystemClock calls both
        clocks so. ``time.monotonic`` is CLOCK_MONOTONIC on Linux (clock_getres(2): "does not count time that the system
        is suspended") and mach_absolute_time on macOS, which stops as well.
        """
        return time.monotonic()

    def elapsed(self) -> float:
        """Seconds since some moment, sleep included.

        CLOCK_BOOTTIME on Linux; on macOS CLOCK_MONOTONIC, which "will continue to increment while the system is asleep"
        (clock_gettime(3)).
        """
        return time.clock_gettime(_STEADY)

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        time.sleep(seconds)

    def select(self, selector: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready in *selector*, waiting at most *timeout* seconds for it."""
        return selector.select(timeout)


CLOCK = Clock()
