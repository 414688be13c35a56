"""Where the gang of a run is placed, and where it goes next: the state in annotations of its JobSet and pods. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, TypedDict

from .plan import PlacedCapacity, Placement, RunPlan
from .schema import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEPT = 20  # decisions in the annotation; node 0's agent records them at each attempt


class Decision(TypedDict):
    """One placement: the node group, what all nodes of the run cost there, and why."""

    t: Optional[float]  # Unix seconds by the API server's clock; None for that of the submission
    group: str
    type: str
    market: str
    rate: Optional[float]  # US dollars per hour, where known
    reason: str


class State(TypedDict):
    """The node group of the gang, those that gave no gang since all nodes were there last, and every decision."""

    order: List[str]
    at: str
    tried: List[str]
    moving: bool  # suspended, to be resumed on the group `at`
    decisions: List[Decision]


class Gang(NamedTuple):
    """What is seen of the pods of a gang."""

    placed: int  # that have a node
    waiting_since: Optional[float]  # Unix seconds, where a pod has none

    def is_whole(self, size: int) -> bool:
        """Whether every one of *size* pods has a node."""
        return self.placed == size and self.waiting_since is None


def initial(placements: Sequence[Placement]) -> State:
    """The state at the submission: on the first of *placements*."""
    decision = _decision(placements[0], None, "the first in capacity.order")
    return {
        "order": [each["name"] for each in placements],
        "at": placements[0]["name"],
        "tried": [],
        "moving": False,
        "decisions": [decision],
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

    The groups that were tried may be tried again once all nodes were there, so that a run goes back to an earlier group
    only when it has lost a node.
    """
    if gang.is_whole(size):
        return {**state, "tried": []} if state["tried"] else None
    target = untried(state)
    if gang.waiting_since is None or target is None or now < gang.waiting_since + capacity["patience"]:
        return None
    reason = "%s gave %d of %d nodes within %gs" % (state["at"], gang.placed, size, capacity["patience"])
    decision = _decision(placement_of(capacity, target), now, reason)
    return {
        **state,
        "at": target,
        "tried": [*state["tried"], state["at"]],
        "moving": True,
        "decisions": [*state["decisions"], decision][-_KEPT:],
    }


def placement_of(capacity: PlacedCapacity, name: str) -> Placement:
    """The placement on the node group *name*."""
    return next(each for each in capacity["placements"] if each["name"] == name)


def placed(plan: RunPlan, state: State) -> RunPlan:
    """*plan* as it is in the current placement; while another one is left, ``limits.start`` allows for the patience."""
    capacity = plan.get("capacity")
    if capacity is None:
        return plan
    placement, limits = placement_of(capacity, state["at"]), plan["limits"]
    if untried(state):
        limits = {**limits, "start": limits["start"] + capacity["patience"]}
    return {**plan, "rate": placement["rate"], "machine": dict(placement["machine"]), "limits": limits}


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
