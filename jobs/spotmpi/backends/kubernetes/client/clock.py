"""The API server's clock: all times of a run are held against that one, whatever this machine's clock says."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

ALIKE = 2.0  # seconds by which clocks may differ and count as one: the header tells whole seconds, and takes its way


class ClusterClock:
    """Learns how far the server's clock is from this machine's *clock*, by the ``Date`` of each of its answers."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ahead = 0.0

    def take(self, date: str | None) -> None:
        """Note the ``Date`` header of an answer that has just come; one that is no date tells nothing."""
        try:
            said = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        ahead = said + 0.5 - self._clock()
        self._ahead = ahead if abs(ahead) > ALIKE else 0.0

    def now(self) -> float:
        """Unix seconds by the server's clock; by this machine's until there was an answer."""
        return self._clock() + self._ahead
