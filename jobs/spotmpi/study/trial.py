"""A trial: one measured run of a sweep."""

from __future__ import annotations

from dataclasses import dataclass

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"

MEASURED = "measured"
SILENT = "without exchange"  # the same work, but no rank hears of another's gradients: a measurement, not training
ALLREDUCE = "allreduce"  # how fast the nodes exchange, before the trials
READ = "read"  # how fast they read the data, before the trials
DRIFT = "drift"  # the smallest cell once more, before and after all others


@dataclass(frozen=True)
class Trial:
    """One run; ``runs`` are the ids of all tries, the last one counts, and ``seconds`` what they took together.

    ``role`` says what it is for: measured, without exchange, drift, allreduce or read.
    """

    number: int
    variant: str
    nodes: int
    repeat: int
    state: str = PENDING
    runs: tuple[str, ...] = ()
    failures: int = 0
    reason: str | None = None
    role: str = MEASURED
    seconds: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the trial needs nothing more."""
        return self.state in (SUCCEEDED, FAILED)
