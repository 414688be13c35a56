"""What a node costs, as far as it is known. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """Dollars that a node costs an hour, and where and when that price was valid.

    Where the node bears its share of a stream's workers, ``worker_hour`` is the price of one of them.
    """

    node_hour: float
    source: str
    worker_hour: float | None = None

    def __str__(self) -> str:
        return f"${self.node_hour:g} an hour ({self.source})"
