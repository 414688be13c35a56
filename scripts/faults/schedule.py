"""The faults of a benchmark, in an order that a seed determines. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

# What each kind is called in a table, and what it does to which rank.
KINDS = {
    "kill": "rank killed (SIGKILL)",
    "delete": "pod deleted",
    "force": "pod deleted by force",
    "evict": "pod evicted",
    "node 0": "pod of node 0 deleted",
}
_GAPS = (15, 35)  # iterations of undisturbed training before a fault
TURN = 3  # faults: what restarts pods waits longer after each failure, which faults that are hours apart do not see


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the rank that it hits, and how many iterations it comes after the last recovery."""

    kind: str
    rank: int
    gap: int


def schedule(seed: int, count: int) -> list[Fault]:
    """So many faults: each kind once, in random order, before any kind comes again."""
    generator = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        for kind in generator.sample(sorted(KINDS), len(KINDS)):
            rank = 0 if kind == "node 0" else generator.randrange(2) if kind == "kill" else 1
            faults.append(Fault(kind, rank, generator.randint(*_GAPS)))
    return faults[:count]


def turns(faults: list[Fault]) -> list[list[Fault]]:
    """The faults that a side gets in each of its turns, each of which starts it anew."""
    return [faults[at : at + TURN] for at in range(0, len(faults), TURN)]
