"""Limits that end a run between two attempts: what its nodes cost, and nodes that are lost again and again. Pure.

A pod that the kernel kills as a whole for its memory looks to agents like one whose machine is gone: the connection
closes. The cluster knows the difference, but agents do not query it. Machines that are taken away are different ones
each time, and mostly give notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .plan import RunPlan
from .schema import AttemptRecord

IDLE = 600.0  # seconds between two attempts that are paid for: machines idle for longer are taken away
MAX_LOSSES = 5  # losses of one node since the run last made progress


def node_seconds(attempts: Sequence[AttemptRecord], now: float) -> list[float]:
    """Seconds, up to the Unix time *now*, for which each of *attempts*, all of one submission, held its nodes.

    Agents measure how long each lasted. Unix times, of several machines, tell only how long the pauses were, which are
    limited, and when an attempt that was lost with its agent ended, which no other clock can.
    """
    seconds = []
    for following, attempt in enumerate(attempts, 1):
        next_start = _held_since(attempts[following]) if following < len(attempts) else now
        if "ended" in attempt:
            held = attempt.get("held", attempt["ended"] - _held_since(attempt))
            seconds.append(max(0.0, held) + min(max(0.0, next_start - attempt["ended"]), IDLE))
        else:
            seconds.append(max(0.0, next_start - _held_since(attempt)))
    return seconds


def dollars(attempts: Sequence[AttemptRecord], now: float) -> float:
    """What *attempts* have cost up to the Unix time *now*: each at the rate of its own world, where that is known."""
    seconds = node_seconds(attempts, now)
    return sum(_rate(attempt) * seconds[number] for number, attempt in enumerate(attempts)) / 3600.0


def seconds_left(plan: RunPlan, rate: float | None, attempts: Sequence[AttemptRecord], now: float) -> float | None:
    """In how many seconds from *now* an attempt at *rate* has to start to end, so that ``limits.cost`` holds.

    None without such a limit, or where the rate is unknown.
    """
    limit = plan["limits"]["cost"]
    if not limit or not rate:
        return None
    return (limit - dollars(attempts, now)) / rate * 3600.0 - plan["grace"]


def cost_reason(plan: RunPlan, rate: float) -> str:
    """The reason of a run that ended at *rate* because of its cost limit."""
    limit = plan["limits"]["cost"]
    assert limit is not None
    capacity = plan.get("capacity")
    deadline = capacity["deadline"] if capacity else None
    name = "capacity.budget" if deadline and deadline["budget"] == limit else "limits.cost"
    return "%s ($%g) is nearly spent at $%g an hour; raise it and resume the run" % (name, limit, rate)


def repeatedly_lost_node(attempts: Iterable[AttemptRecord]) -> int | None:
    """The node that was lost `MAX_LOSSES` times since these *attempts*, oldest first, last made progress, or None.

    Progress is an iteration or a checkpoint beyond all earlier ones. A program that reports neither never makes any.
    """
    losses: Counter[int] = Counter()
    iteration = checkpoint = -1
    for attempt in attempts:
        last = _number(attempt.get("last_iteration"))
        stored = max(_number(attempt.get("resumed_iteration")), _number(attempt.get("checkpoint_iteration")))
        if last > iteration or stored > checkpoint:
            losses.clear()
        iteration, checkpoint = max(iteration, last), max(checkpoint, stored)
        losses.update(attempt.get("lost_nodes") or ())
    nodes = [node for node, count in losses.items() if count >= MAX_LOSSES]
    return min(nodes) if nodes else None


def loss_reason(node: int) -> str:
    """The reason of a run that ended because *node* was lost repeatedly."""
    return (
        "node %d was lost %d times without notice and the run made no progress: if its pod exceeded its memory limit "
        "(`kubectl describe pod` shows OOMKilled), raise resources.memory and resume the run" % (node, MAX_LOSSES)
    )


def _rate(attempt: AttemptRecord) -> float:
    return (attempt["world"]["rate"] if "world" in attempt else None) or 0.0


def _held_since(attempt: AttemptRecord) -> float:
    return attempt.get("present", attempt["started"])


def _number(value: int | None) -> int:
    return -1 if value is None else int(value)
