"""What happens to a run, as one stream that every backend gives in the same shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobs.pod.record import TERMINAL


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    ``kind`` is one of submitted, waiting, started, line, metric, interrupted, restarted, succeeded, failed, stopped.
    ``time`` is in Unix seconds. Lines carry ``node`` and ``number`` (from 1, in that attempt and node) and in
    ``values`` rank, stream and text; metrics carry what the program reported; the others a reason where there is one.
    """

    time: float
    kind: str
    attempt: int = 0
    node: int = 0
    number: int = 0
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """Whether the run has ended with this event."""
        return self.kind in TERMINAL

    @property
    def reason(self) -> str | None:
        """Why, where a reason is known."""
        return self.values.get("reason")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for scripts."""
        where = {"attempt": self.attempt, "node": self.node, "number": self.number}
        return {"time": self.time, "event": self.kind, **{key: v for key, v in where.items() if v}, **self.values}
