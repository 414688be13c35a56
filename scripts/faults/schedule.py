"""The faults of a benchmark, in an order that a seed determines. Pure."""

from __future__ import annotations

import random

from tests.testbed.faults import Fault, rounds

# What each kind is called in a table, and what it does to which rank.
KINDS = {
    "rank": "rank killed (SIGKILL)",
    "delete": "pod deleted",
    "force": "pod deleted by force",
    "evict": "pod evicted",
    "node 0": "pod of node 0 deleted",
}
_GAPS = (15, 35)  # iterations of undisturbed training before a fault
TURN = 3  # faults: what restarts pods waits longer after each failure, which faults that are hours apart do not see


def schedule(seed: int, count: int) -> list[Fault]:
    """So many faults: each kind once, in random order, before any kind comes again."""
    generator = random.Random(seed)
    found: list[Fault] = []
    for kind in rounds(generator, KINDS, count):
        node = 0 if kind == "node 0" else generator.randrange(2) if kind == "rank" else 1
        found.append(Fault(kind, node, generator.randint(*_GAPS)))
    return found


def turns(faults: list[Fault]) -> list[list[Fault]]:
    """The faults that a side gets in each of its turns, each of which starts it anew."""
    return [faults[at : at + TURN] for at in range(0, len(faults), TURN)]
