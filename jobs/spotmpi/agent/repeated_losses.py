"""Nodes that are lost again and again without notice while the run gets no further: another attempt is in vain. Pure.

A pod that the kernel kills for memory as a whole says no more than one whose machine is gone: the connection closes.
The cluster knows, but agents do not ask it. Machines that are taken away are different ones, and mostly give notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

LIMIT = 5  # losses of one node since the run last got further


def node(attempts: Iterable[dict[str, Any]]) -> int | None:
    """The node that was lost `LIMIT` times since these *attempts*, oldest first, last got further, or None.

    Getting further is an iteration or a checkpoint beyond all earlier ones. What reports neither never does.
    """
    losses: Counter[int] = Counter()
    iteration = checkpoint = -1
    for attempt in attempts:
        reached = _number(attempt, "last_iteration")
        kept = max(_number(attempt, "resumed_iteration"), _number(attempt, "checkpoint_iteration"))
        if reached > iteration or kept > checkpoint:
            losses.clear()
        iteration, checkpoint = max(iteration, reached), max(checkpoint, kept)
        losses.update(attempt.get("lost_nodes") or ())
    often = [each for each, count in losses.items() if count >= LIMIT]
    return min(often) if often else None


def reason(node: int) -> str:
    """Why a run ended that has lost *node* so often."""
    return (
        "node %d was lost %d times without notice and the run got no further: if its pod used more memory than it may "
        "(`kubectl describe pod` says OOMKilled), raise resources.memory and continue with --resume" % (node, LIMIT)
    )


def _number(attempt: dict[str, Any], key: str) -> int:
    value = attempt.get(key)
    return -1 if value is None else int(value)
