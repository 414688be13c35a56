"""What one rank of a stream counts and reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from spotmpi.agent.plan import POSTPROCESS, WORKER
from spotmpi.streams.chunk import Chunk
from spotmpi.streams.order import Settings

Report = Callable[[dict[str, Any]], None]  # gets the values of a report of the kind `spotmpi.agent.protocol.STREAM`

# What a report calls the number of workers of a role that are connected, and the seconds for which they have worked.
COUNTS = {WORKER: "workers", POSTPROCESS: "postprocess_workers"}
_SECONDS = {WORKER: "preparing", POSTPROCESS: "postprocessing"}
INTERVAL = 2.0  # seconds between the reports of a rank
RANKS_A_SECOND = 4  # reports of all ranks, where there are so many ranks that the interval has to be longer


class Counts(NamedTuple):
    """Batches that a rank has taken, chunks in flight to it, and batches that were skipped."""

    batches: int = 0
    in_flight: int = 0
    skipped: int = 0


class Meter:
    """Counts of a rank since it began to iterate; *send* gets its reports."""

    def __init__(self, rank: int, ranks: int, settings: Settings, send: Report | None) -> None:
        self._identity = {"rank": rank, "ranks": ranks}
        self._identity |= {COUNTS[role]: getattr(settings, COUNTS[role]) for role in settings.roles}
        self._roles = settings.roles
        self._send, self._interval = send, max(INTERVAL, ranks / RANKS_A_SECOND)
        self.begin()

    def begin(self) -> None:
        """Count from zero."""
        self._begin = self._last_report = time.perf_counter()
        self.waited = 0.0
        self._busy = dict.fromkeys(self._roles, 0.0)  # seconds
        self.size = 0
        self._pending = False

    @property
    def seconds(self) -> float:
        """Seconds since the begin."""
        return time.perf_counter() - self._begin

    def add(self, chunk: Chunk, waited: float, role: str = WORKER) -> None:
        """Count a chunk of workers of this *role* that was waited for."""
        self.waited += waited
        self._busy[role] += chunk.seconds
        self.size += chunk.size

    def report(self, counts: Counts, force: bool = False) -> None:
        """Report if that is due."""
        now = time.perf_counter()
        if force or self._pending or now - self._last_report >= self._interval:
            self._last_report, self._pending = now, False
            self._report(counts)

    def report_pending(self, counts: Counts, pending: dict[str, Any], waited: float, busy: float, role: str) -> None:
        """Report that the rank has waited so many seconds for a batch, in *busy* of which a worker of *role* worked."""
        self._pending = True
        current = {"waited": round(self.waited + waited, 3), _SECONDS[role]: round(self._busy[role] + busy, 3)}
        self._report(counts, **current, pending=pending)

    def _report(self, counts: Counts, **more: Any) -> None:
        if self._send is None:
            return
        values = {
            **self._identity,
            "batches": counts.batches,
            "bytes": self.size,
            "seconds": round(self.seconds, 3),
            "waited": round(self.waited, 3),
            **{_SECONDS[role]: round(seconds, 3) for role, seconds in self._busy.items()},
            "in_flight": counts.in_flight,
            "skipped": counts.skipped,
        }
        self._send({**values, **more})
