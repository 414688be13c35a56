"""Where the gang of a run is placed, and where it goes next: the state in annotations of its JobSet and pods. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, TypedDict

from .plan import Deadline, Forecast, PlacedCapacity, Placement, RunPlan
from .schema import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT = 20  # decisions in the annotation; node 0's agent records them at each attempt
_SEEN = 60  # observations in the annotation


class Decision(TypedDict, total=False):
    """One placement: the node group, what all nodes of the run cost there, and why."""

    t: Optional[float]  # Unix seconds by the API server's clock; None for that of the submission
    group: str
    type: str
    market: str
    rate: Optional[float]  # US dollars per hour, where known
    reason: str
    forecast: Forecast  # with the first decision about a run with a deadline


class Seen(TypedDict):
    """What a node group gave at a time: all nodes, or 0 after the patience; None where nodes were lost again."""

    t: float  # Unix seconds by the API server's clock
    group: str
    nodes: Optional[int]
    waited: float  # seconds for which pods had waited


class State(TypedDict):
    """The node group of the gang, those that gave no gang since all nodes were there last, and every decision."""

    order: List[str]
    at: str
    tried: List[str]
    moving: bool  # suspended, to be resumed on the group `at`
    decisions: List[Decision]
    seen: List[Seen]


class Gang(NamedTuple):
    """What is seen of the pods of a gang."""

    placed: int  # that have a node
    waiting_since: Optional[float]  # Unix seconds, where a pod has none
    created: Optional[float] = None  # Unix seconds of the first pod, where there is one

    def is_whole(self, size: int) -> bool:
        """Whether every one of *size* pods has a node."""
        return self.placed == size and self.waiting_since is None


def initial(capacity: PlacedCapacity) -> State:
    """The state at the submission: on the first of the placements."""
    placements = capacity["placements"]
    decision = _decision(placements[0], None, capacity["reason"])
    if capacity["forecast"] is not None:
        decision["forecast"] = capacity["forecast"]
    return {
        "order": [each["name"] for each in placements],
        "at": placements[0]["name"],
        "tried": [],
        "moving": False,
        "decisions": [decision],
        "seen": [],
    }


def to_text(state: State) -> str:
    """*state* as the text of an annotation."""
    return json.dumps(state, sort_keys=True)


def parse(text: str | None) -> State | None:
    """The state in the text of an annotation, or None."""
    values: Any = read_object(text or "")
    complete = all(key in values for key in State.__annotations__)
    return values if complete else None


def untried(state: State) -> str | None:
    """The first node group of the order that may still give a gang, or None."""
    return next((name for name in state["order"] if name != state["at"] and name not in state["tried"]), None)


def next_state(state: State, gang: Gang, capacity: PlacedCapacity, size: int, now: float) -> State | None:
    """The state that follows from what is seen of the gang of *size* nodes at the time *now*; None while nothing does.

    The groups that were tried may be tried again once all nodes were there. `returns` tells when a gang that has all
    its nodes goes back to an earlier group.
    """
    following, here = observed(state, gang, capacity["patience"], size, now), state["at"]
    target = untried(following)
    if here in following["tried"] and here not in state["tried"] and target is not None:
        reason = "%s gave %d of %d nodes within %gs" % (here, gang.placed, size, capacity["patience"])
        return decided(following, placement_of(capacity, target), now, reason)
    return None if following == state else following


def retry_at(state: State, name: str, retry: float) -> float:
    """Unix time from which on a gang that has its nodes elsewhere may ask the group *name* again; 0 if it gave nodes.

    That is *retry* seconds after it was asked in vain, and twice as long for each time in vain before that.
    """
    refusals, last = 0, 0.0
    for each in state["seen"]:
        if each["group"] == name:
            refusals, last = (0, 0.0) if each["nodes"] else (refusals + (each["nodes"] == 0), each["t"])
    return last + retry * 2.0 ** (refusals - 1) if refusals else 0.0


def decided(state: State, target: Placement, now: float, reason: str) -> State:
    """*state* with the decision for *target*, to which the gang moves unless it is there."""
    decisions = [*state["decisions"], _decision(target, now, reason)][-_KEPT:]
    moving = target["name"] != state["at"]
    return {**state, "at": target["name"], "moving": moving, "decisions": decisions}


def observed(state: State, gang: Gang, patience: float, size: int, now: float) -> State:
    """*state* with what is seen of the gang of *size* nodes: all, the loss of one, or none for the *patience*."""
    at, seen, tried = state["at"], state["seen"], state["tried"]
    last = next((each for each in reversed(seen) if each["group"] == at), None)
    known = last is not None and last["nodes"] == size and last is seen[-1]
    waited = 0.0 if gang.waiting_since is None else now - gang.waiting_since
    entry: Seen = {"t": now, "group": at, "nodes": size, "waited": waited}
    if gang.is_whole(size):
        if known and not tried:
            return state
        began = gang.created if gang.created is not None else now
        entry["waited"] = now - began
        return {**state, "tried": [], "seen": [*seen, entry][-_SEEN:]}
    if gang.waiting_since is None:
        return state
    if waited >= patience and at not in tried:
        entry["nodes"] = 0
        return {**state, "tried": [*tried, at], "seen": [*seen, entry][-_SEEN:]}
    entry["nodes"] = None
    return {**state, "seen": [*seen, entry][-_SEEN:]} if known else state


def placement_of(capacity: PlacedCapacity, name: str) -> Placement:
    """The placement on the node group *name*."""
    return next(each for each in capacity["placements"] if each["name"] == name)


def placed(plan: RunPlan, state: State) -> RunPlan:
    """*plan* as it is in the current placement; ``limits.start`` allows for the time in which nodes may come there."""
    capacity = plan.get("capacity")
    if capacity is None:
        return plan
    placement, limits = placement_of(capacity, state["at"]), plan["limits"]
    limits = {**limits, "start": limits["start"] + wait_for_nodes(capacity, state, plan.get("submitted", 0.0))}
    return {**plan, "rate": placement["rate"], "machine": dict(placement["machine"]), "limits": limits}


def wait_for_nodes(capacity: PlacedCapacity, state: State, submitted: float) -> float:
    """Seconds for which a gang may wait for its nodes where it is placed, before it is moved or the time is over."""
    deadline = capacity["deadline"]
    if deadline is None:
        return capacity["patience"] if untried(state) else 0.0
    return seconds_to(deadline, submitted)


def seconds_to(deadline: Deadline, submitted: float) -> float:
    """Seconds from the submission (Unix seconds by the API server's clock) to the *deadline*."""
    if deadline["at"] is not None:
        return max(0.0, deadline["at"] - submitted)
    return deadline["after"] or 0.0


def event_values(decision: Mapping[str, Any], submitted: float) -> Dict[str, Any]:
    """A decision as the values of an event, with its time in ``t``; the first one is of the time of submission."""
    return {**decision, "t": submitted if decision["t"] is None else decision["t"]}


def _decision(placement: Placement, moment: float | None, reason: str) -> Decision:
    machine = placement["machine"]
    return {
        "t": moment,
        "group": placement["name"],
        "type": machine["type"],
        "market": machine["market"],
        "rate": placement["rate"],
        "reason": reason,
    }
