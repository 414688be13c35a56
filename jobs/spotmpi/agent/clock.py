"""What time it is, and how long this machine has been at work."""

from __future__ import annotations

import time


class Clock:
    """Unix time when called, for the record and for money; `awake` for limits.

    A machine that sleeps does nothing for a run, and must not fail it for that: `awake` stands still meanwhile, for
    ``time.monotonic`` is CLOCK_MONOTONIC on Linux (clock_getres(2): "does not count time that the system is suspended")
    and mach_absolute_time on macOS, which stops as well.
    """

    def __call__(self) -> float:
        """Unix seconds."""
        return time.time()

    def awake(self) -> float:
        """Seconds since some moment in which this machine was not asleep."""
        return time.monotonic()
