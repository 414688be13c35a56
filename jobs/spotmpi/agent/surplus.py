"""When nodes beyond an allowed number are released, and when they are asked for again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Optional, Sequence

from . import placement, protocol

if TYPE_CHECKING:
    from .plan import PlacedCapacity

_SETTLE = 10.0  # seconds after which node 0 takes the node of another: nodes of one request come one by one
_EXCHANGE = 60.0  # seconds in which it gets that, while no other pod asks for a node
_NO_CHECKPOINT = "no checkpoint was written at which the run could go on with them"


def next_state(
    state: placement.State,
    gang: placement.Gang,
    used: Optional[Collection[int]],
    capacity: PlacedCapacity,
    sizes: Sequence[int],
    now: float,
) -> Optional[placement.State]:
    """The state that follows from the nodes that an attempt does not have; None while nothing does.

    *used* are the numbers of the pods that are nodes of the present attempt, None while there is none. The other pods
    are released once one of them has had a node for the limit of partial gangs: also those that wait for one, which
    would get that node next. They are asked for again after a pause, which doubles as long as the number of nodes stays
    the same; and at once where too few nodes are left for the run. Where others have nodes and node 0 has none, it
    takes one of theirs.
    """
    away = state["away"]
    is_led = any(number == 0 for number, _ in gang.nodes)
    if away is not None and away["pods"]:
        is_needed = gang.waiting_since is not None if away["used"] else is_led
        if is_needed or now >= away["until"]:
            return {**state, "away": placement.request_again(away)}
    if not is_led:
        return _led_by_node_0(state, gang, capacity, sizes, now)
    last = state["seen"][-1] if state["seen"] else None
    if used is None or last is None or not last["nodes"] or last["group"] != state["at"]:
        return None
    known = {*used, *(away["pods"] if away is not None else ())}  # which are released, once their Jobs have changed
    idle = {number: max(since, last["t"]) for number, since in gang.nodes if number not in known}
    if not idle or now - min(idle.values()) < capacity["partial"]:
        return None
    others = [number for number in range(sizes[-1]) if number not in used]
    pause = _pause(away, len(used), capacity)
    values = placement.idle_values(state, list(idle.values()), capacity, sizes, now)
    gave = "%s gave %d of %s nodes" % (state["at"], gang.placed, " or ".join(map(str, sizes)))
    missing = _NO_CHECKPOINT if last["nodes"] > len(used) else "no other"
    partial = protocol.duration(capacity["partial"])
    reason = "%s, and %s within %s: %s" % (gave, missing, partial, _released(len(idle), pause))
    return {
        **placement.with_decision(state, placement.placement_of(capacity, state["at"]), now, reason, values),
        "away": {"pods": others, "until": now + pause, "pause": pause, "used": len(used)},
    }


def _released(count: int, pause: float) -> str:
    """What happens to nodes that an attempt does not have, for so many seconds."""
    are = "is" if count == 1 else "are"
    return "%d %s released, and asked for again in %g min" % (count, are, round(pause / 60.0, 1))


def _pause(away: Optional[placement.Away], used: int, capacity: PlacedCapacity) -> float:
    """Seconds until surplus nodes are asked for again, after an attempt with as many nodes as *used*."""
    if away is None or away["used"] != used:
        return capacity["partial"]
    return max(capacity["partial"], min(2.0 * away["pause"], capacity["retry"]))


def _led_by_node_0(
    state: placement.State, gang: placement.Gang, capacity: PlacedCapacity, sizes: Sequence[int], now: float
) -> Optional[placement.State]:
    """The state in which node 0 gets the node of the last pod that has one, where these would be enough with it."""
    waits = gang.waiting_since
    if waits is None or gang.placed < sizes[0] or now - max(waits, *(since for _, since in gang.nodes)) < _SETTLE:
        return None
    kept = [0, *(number for number, _ in gang.nodes[:-1])]
    reason = "node 0 gets the node of node %d: no attempt begins without node 0" % gang.nodes[-1][0]
    others = [number for number in range(sizes[-1]) if number not in kept]
    target = placement.placement_of(capacity, state["at"])
    return {
        **placement.with_decision(state, target, now, reason),
        "away": {"pods": others, "until": now + _EXCHANGE, "pause": 0.0, "used": 0},
    }
