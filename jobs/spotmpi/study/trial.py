"""A trial: one measured run of a study."""

from __future__ import annotations

from dataclasses import dataclass

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"

# Roles. WITHOUT_ALLREDUCE is a measurement and no training: ranks do not exchange gradients.
MEASURED = "measured"
WITHOUT_ALLREDUCE = "without allreduce"
ALLREDUCE = "allreduce"  # micro-benchmark of the network, before the measured trials
READ = "read"  # micro-benchmark of reading the data, before the measured trials
DRIFT = "drift"  # the smallest cell, before and after all other trials


@dataclass(frozen=True)
class Trial:
    """One trial; ``runs`` are the ids of all its tries, of which the last one counts, ``seconds`` their total time.

    ``role`` is what it is for: measured, without allreduce, drift, allreduce or read.
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
    def finished(self) -> bool:
        """Whether it succeeded or failed for good."""
        return self.state in (SUCCEEDED, FAILED)
