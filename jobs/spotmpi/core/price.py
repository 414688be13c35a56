"""What a node costs, as far as it is known. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """Dollars that a node costs an hour, and where and when that price was valid.

    Where the node bears its share of a stream's workers, ``worker_hour`` is the price of one of them. Where all nodes
    are this *machine*, it is that of the machine, whatever else runs there.
    """

    node_hour: float
    source: str
    worker_hour: float | None = None
    machine: bool = False

    def hourly(self, nodes: int) -> float:
        """US dollars per hour of so many nodes."""
        return self.node_hour * paid_nodes(nodes, self.machine)

    def __str__(self) -> str:
        return f"${self.node_hour:g} an hour ({self.source}{'; for all nodes, which are this machine' * self.machine})"


def paid_nodes(nodes: int, machine: bool) -> int:
    """How many times so many nodes cost the price of one, where all of them are this *machine* and where not."""
    return 1 if machine else nodes
