"""Where the gang of a run is placed, and where it goes next: the state in annotations of its JobSet and pods. Pure."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict

from . import protocol
from .plan import Block, Deadline, Ending, Forecast, PlacedCapacity, Placement, RunPlan
from .schema import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEPT = 20  # decisions in the annotation; node 0's agent records them at each attempt
_SEEN = 60  # observations in the annotation
_NO_OTHER = "no other node group is left: name one in capacity.order, and resume the run"


class Decision(TypedDict, total=False):
    """One placement: the node group, what all nodes of the run, with those that stand by, cost there, and why."""

    t: Optional[float]  # Unix seconds by the API server's clock; None for that of the submission
    group: str
    type: str
    market: str
    rate: Optional[float]  # US dollars per hour, where known
    reason: str
    forecast: Forecast  # with the first decision about a run with a deadline
    until: float  # Unix seconds until which the run waits without nodes
    starts: float  # Unix seconds at which the Capacity Block of the group starts
    again: bool  # all groups of the order had given no gang, and this one is asked again
    idle: float  # node-seconds for which nodes that are released had waited for others
    idle_dollars: Optional[float]  # what these cost


class GroupObservation(TypedDict):
    """What a node group gave at a time: allowed nodes, 0 after the patience, None where these were lost again."""

    t: float  # Unix seconds by the API server's clock
    group: str
    nodes: Optional[int]
    waited: float  # seconds for which pods had waited


class Away(TypedDict):
    """Nodes, by the number of their pods, that were released since too few others came for the next allowed size."""

    pods: List[int]  # empty once they are asked for again
    until: float  # Unix seconds at which they are
    pause: float  # seconds for which they were released
    used: int  # nodes on which the run went on; 0 where node 0 is to get one of theirs


class State(TypedDict):
    """The node group of the gang, those that gave no gang since enough nodes were there last, and every decision."""

    order: List[str]
    at: str
    tried: List[str]
    moving: bool  # suspended, to be resumed on the group `at`
    decisions: List[Decision]
    seen: List[GroupObservation]
    away: Optional[Away]


class Gang(NamedTuple):
    """What is seen of the pods of a gang; *sizes* are its allowed numbers of nodes, the smallest first.

    A pod that stands by counts as a node: it takes the place of one that is lost.
    """

    placed: int  # that have a node
    waiting_since: Optional[float]  # Unix seconds since which too few nodes are there; None while none is waited for
    created: Optional[float] = None  # Unix seconds of the first pod, where there is one
    idle_since: Tuple[float, ...] = ()  # Unix seconds since which each node waits for others, while too few are there
    refusal: str = ""  # why no further node is to come, where that is known
    nodes: Tuple[Tuple[int, float], ...] = ()  # the numbers of pods that have a node, and Unix seconds since when

    def usable(self, sizes: Sequence[int]) -> Optional[int]:
        """The most allowed nodes that are there; None while these are too few, or node 0 has none."""
        if self.waiting_since is not None:
            return None
        return max((size for size in sizes if size <= self.placed), default=None)

    def is_partial_over(self, capacity: PlacedCapacity, now: float) -> bool:
        """Whether nodes that came have waited for others as long as they may, or none is to follow."""
        if not self.idle_since:
            return False
        return bool(self.refusal) or now - min(self.idle_since) >= capacity["partial"]

    def is_over(self, capacity: PlacedCapacity, now: float) -> bool:
        """Whether the wait for enough nodes in one group is over, if there is another one."""
        if self.waiting_since is None:
            return False
        waited = now - self.waiting_since >= capacity["patience"]
        return waited or bool(self.refusal) or self.is_partial_over(capacity, now)

    def shortage(self, capacity: PlacedCapacity, sizes: Sequence[int], now: float) -> str:
        """What a group gave of the nodes of a gang whose wait is over."""
        gave = "gave %d of %s nodes" % (self.placed, " or ".join(map(str, sizes)))
        if self.placed >= sizes[0]:
            gave += ", and none for node 0"
        if self.refusal:
            return "%s, and %s" % (gave, self.refusal)
        if self.is_partial_over(capacity, now):
            return "%s, and no other within %s" % (gave, protocol.duration(capacity["partial"]))
        return "%s within %s" % (gave, protocol.duration(capacity["patience"]))


def initial(capacity: PlacedCapacity) -> State:
    """The state at the submission: on the first of the placements."""
    placements = capacity["placements"]
    decision = _decision(placements[0], None, capacity["reason"])  # in a Capacity Block it is suspended until its start
    if capacity["forecast"] is not None:
        decision["forecast"] = capacity["forecast"]
    return {
        "order": [each["name"] for each in placements],
        "at": placements[0]["name"],
        "tried": [],
        "moving": "starts" in decision,
        "decisions": [decision],
        "seen": [],
        "away": None,
    }


def to_text(state: State) -> str:
    """*state* as the text of an annotation."""
    return json.dumps(state, sort_keys=True)


def parse(text: str | None) -> State | None:
    """The state in the text of an annotation, or None."""
    values: Any = read_object(text or "")
    complete = all(key in values for key in State.__annotations__)
    return values if complete else None


def waiting_since_whole(state: State, gang: Gang, now: float) -> Gang:
    """*gang*, whose wait for nodes began no earlier than when it was seen with all of them last.

    Where pods stand by, one that waits may not have been needed before, and a lost one that stood by has no next pod.
    """
    last = state["seen"][-1] if state["seen"] else None
    if gang.waiting_since is None or last is None or last["group"] != state["at"] or last["nodes"] == 0:
        return gang
    since = last["t"] if last["nodes"] is None else now
    idle = tuple(max(each, since) for each in gang.idle_since)
    return gang._replace(waiting_since=max(gang.waiting_since, since), idle_since=idle)


def next_group(state: State, closed: Sequence[str] = ()) -> str | None:
    """The first node group of the order that may still give a gang and is not *closed*, or None."""
    tried = {state["at"], *state["tried"], *closed}
    return next((name for name in state["order"] if name not in tried), None)


def closed(capacity: PlacedCapacity, now: float) -> List[str]:
    """The node groups in Capacity Blocks that are not there at the time *now*, or not for long enough."""
    blocks = {each["name"]: each["block"] for each in capacity["placements"] if "block" in each}
    return [name for name, block in blocks.items() if not block["start"] <= now < block["leave"]]


def utc(moment: float) -> str:
    """A time in Unix seconds, for people."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def waits_for(block: Block) -> str:
    """For what a gang waits that is placed in a Capacity Block before its start."""
    return "waits for the Capacity Block %s, which starts at %s" % (block["reservation"], utc(block["start"]))


def _later(capacity: PlacedCapacity, now: float) -> Placement | None:
    """The placement in the Capacity Block that starts next after the time *now*, or None."""
    blocks = [each for each in capacity["placements"] if "block" in each and now < each["block"]["start"]]
    return min(blocks, key=lambda each: each["block"]["start"], default=None)


def next_state(state: State, gang: Gang, capacity: PlacedCapacity, sizes: Sequence[int], now: float) -> State | None:
    """The state that follows from what is seen of the gang at the time *now*; None while nothing does.

    A gang with one of the allowed *sizes* stays, up to the end of its Capacity Block. For a part of one in a block
    there is no pause, since it has been paid. The groups that were tried may be tried again once enough nodes were
    there, or some were released; while the run waits without, each one at its time, see `_asked_again_at`.
    `failback` tells when a gang that has its nodes goes back to an earlier group.
    """
    following, here = with_observation(state, gang, capacity, sizes, now), state["at"]
    idle = idle_values(state, gang.idle_since, capacity, sizes, now)
    shut, in_block = closed(capacity, now), [each["name"] for each in capacity["placements"] if "block" in each]
    if here in shut:
        return _left(following, gang.usable(sizes) is not None, idle, capacity, now)
    target, gave = next_group(following, shut), "%s %s" % (here, gang.shortage(capacity, sizes, now))
    is_new = here not in state["tried"] or target in in_block  # which was passed over before its start
    if here in following["tried"] and is_new and target is not None:
        return with_decision(following, placement_of(capacity, target), now, gave, idle)
    if target is None and here not in in_block and gang.is_partial_over(capacity, now):
        first = placement_of(capacity, next(name for name in state["order"] if name not in shut))
        return give_back(following, first, now, Pause(gave, backoff(state, capacity)), idle)
    others = [each for each in state["order"] if each not in (here, *shut)]
    again = next((each for each in others if now >= _asked_again_at(following, each, capacity)), None)
    is_asking = here in following["tried"] and (here in in_block or not gang.placed)  # of a part the limit counts
    if target is None and is_asking and again is not None:
        reason = "%s%s; %s is asked again" % (gave, _further_wait(gang, capacity, now), again)
        following = {**following, "tried": [each for each in following["tried"] if each != again]}
        return with_decision(following, placement_of(capacity, again), now, reason, {**idle, "again": True})
    return None if following == state else following


def _further_wait(gang: Gang, capacity: PlacedCapacity, now: float) -> str:
    """For how long a gang has waited after its patience was over; empty up to a minute, or where no node is to come."""
    minutes = round((now - (gang.waiting_since or now) - capacity["patience"]) / 60)
    return "" if gang.refusal or minutes < 1 else ", nor in the %d min since" % minutes


def _asked_again_at(state: State, name: str, capacity: PlacedCapacity) -> float:
    """Unix time from which on a run that waits asks the group *name* again: the patience after that gave no gang.

    Twice as long after each time since the run had all its nodes last, up to ``capacity.retry``: so nodes that start
    more slowly than in that time come too.
    """
    refused = [each["t"] for each in state["seen"] if each["group"] == name and each["nodes"] == 0]
    refused = [each for each in refused if each > _whole_until(state)]
    pause = min(capacity["patience"] * 2.0 ** (len(refused) - 1), capacity["retry"])
    return refused[-1] + max(capacity["patience"], pause) if refused else 0.0


def _left(state: State, is_led: bool, idle: Decision, capacity: PlacedCapacity, now: float) -> State | None:
    """The state of a gang whose Capacity Block ends: on the next group, or in the block that starts next.

    Where there is neither, the agent by which it *is led* ends the run, see `with_placement`. Without one
    no node is asked for.
    """
    here = placement_of(capacity, state["at"])
    reason = "the Capacity Block %s ends at %s" % (here["block"]["reservation"], utc(here["block"]["end"]))
    name = next_group({**state, "tried": []}, closed(capacity, now))
    following = placement_of(capacity, name) if name else _later(capacity, now)
    if following is not None:
        if not name:
            reason = "%s; %s" % (reason, waits_for(following["block"]))
        return with_decision({**state, "tried": []}, following, now, reason, idle)
    if is_led:
        return None
    again: Decision = {**idle, "until": now + capacity["retry"]}
    return {**with_decision(state, here, now, reason + "; " + _NO_OTHER, again), "moving": True}


class Pause(NamedTuple):
    """For how many seconds a run waits without nodes, and why."""

    reason: str
    seconds: float


def give_back(state: State, target: Placement, now: float, pause: Pause, idle: Decision) -> State:
    """*state* with the decision to give the nodes of a partial gang back, and to ask *target* after a *pause*."""
    minutes = "%g min" % math.ceil(pause.seconds / 60)
    reason = "%s; they are released, and %s is asked in %s" % (pause.reason, target["name"], minutes)
    again: Decision = {**idle, "until": now + pause.seconds}
    return {**with_decision({**state, "tried": []}, target, now, reason, again), "moving": True}


def backoff(state: State, capacity: PlacedCapacity) -> float:
    """Seconds for which a run waits without nodes after a partial gang: twice as long after each failed attempt."""
    last = max((until - moment for moment, until in pauses(state)), default=0.0)
    return max(capacity["partial"], min(2.0 * last, capacity["retry"]))


def pauses(state: State) -> List[Tuple[float, float]]:
    """When partial gangs were released since the run had all its nodes last, and until when; Unix seconds."""
    times = [(each["t"] or 0.0, each["until"]) for each in state["decisions"] if "until" in each]
    return [each for each in times if each[0] > _whole_until(state)]


def asked_again_since(state: State) -> float | None:
    """Unix time at which a group was first asked again since the run had all its nodes last, or is to be; or None."""
    times = [each["t"] or 0.0 for each in state["decisions"] if "until" in each or each.get("again")]
    return next((each for each in times if each > _whole_until(state)), None)


def _whole_until(state: State) -> float:
    """Unix time at which the run was last seen to have all its nodes; 0 before."""
    return max((each["t"] for each in state["seen"] if each["nodes"]), default=0.0)


def idle_values(
    state: State, since: Sequence[float], capacity: PlacedCapacity, sizes: Sequence[int], now: float
) -> Decision:
    """What it cost that nodes have waited for others *since* these times, as values of the decision that ends it."""
    if not since:
        return {}
    seconds, rate = sum(now - each for each in since), placement_of(capacity, state["at"])["rate"]
    dollars = None if rate is None else round(seconds * rate / (sizes[-1] + capacity["standby"]) / 3600.0, 4)
    return {"idle": seconds, "idle_dollars": dollars}


def retry_at(state: State, name: str, retry: float) -> float:
    """Unix time from which on a gang that has its nodes elsewhere may ask the group *name* again; 0 if it gave nodes.

    That is *retry* seconds after it was asked without success, and twice as long for each time before that, with nodes
    elsewhere in between.
    """
    refusals, last, is_counted = 0, 0.0, False
    for each in state["seen"]:
        if each["nodes"]:
            is_counted = False
        if each["group"] == name and each["nodes"] == 0:
            refusals, last, is_counted = refusals + (not is_counted), each["t"], True
        elif each["group"] == name and each["nodes"]:
            refusals, last = 0, 0.0
    return last + retry * 2.0 ** (refusals - 1) if refusals else 0.0


def with_decision(state: State, target: Placement, now: float, reason: str, more: Decision | None = None) -> State:
    """*state* with the decision for *target* and *more* values of it; the gang moves there unless it is there."""
    decision: Decision = {**_decision(target, now, reason), **(more or {})}
    decisions, since = [*state["decisions"], decision], asked_again_since(state)
    first = [each for each in decisions[:-_KEPT] if each["t"] == since]  # `limits.start` counts from there
    moving = target["name"] != state["at"]
    return {
        **state,
        "at": target["name"],
        "moving": moving,
        "decisions": [*first, *decisions[-_KEPT:][len(first) :]],
        "away": request_again(state["away"]),
    }


def request_again(away: Away | None) -> Away | None:
    """*away* once these nodes are asked for again."""
    return None if away is None else {**away, "pods": []}


def waits_until(state: State) -> float | None:
    """Unix time until which the run waits without nodes; None where it asks for them, or is about to."""
    last = state["decisions"][-1]
    return last.get("until", last.get("starts")) if state["moving"] else None


def with_observation(state: State, gang: Gang, capacity: PlacedCapacity, sizes: Sequence[int], now: float) -> State:
    """*state* with what is seen of the gang: it has nodes, has lost some, or had none while they were waited for."""
    at, seen, tried = state["at"], state["seen"], state["tried"]
    last = next((each for each in reversed(seen) if each["group"] == at), None)
    known = last["nodes"] if last is not None and last is seen[-1] else None
    waited = 0.0 if gang.waiting_since is None else now - gang.waiting_since
    entry: GroupObservation = {"t": now, "group": at, "nodes": gang.usable(sizes), "waited": waited}
    if entry["nodes"] is not None:
        if known == entry["nodes"] and not tried:
            return state
        began = gang.created if gang.created is not None else now
        entry["waited"] = now - began
        return {**state, "tried": [], "seen": [*seen, entry][-_SEEN:]}
    if gang.waiting_since is None:
        return state
    if at not in tried and gang.is_over(capacity, now):
        entry["nodes"] = 0
        return {**state, "tried": [*tried, at], "seen": [*seen, entry][-_SEEN:]}
    return {**state, "seen": [*seen, entry][-_SEEN:]} if known else state


def placement_of(capacity: PlacedCapacity, name: str) -> Placement:
    """The placement on the node group *name*."""
    return next(each for each in capacity["placements"] if each["name"] == name)


def with_placement(plan: RunPlan, state: State) -> RunPlan:
    """*plan* as it is in the current placement; ``limits.start`` allows for the time in which nodes may come there.

    In a Capacity Block after which no group is left, it has an end.
    """
    capacity = plan.get("capacity")
    if capacity is None:
        return plan
    placement, limits = placement_of(capacity, state["at"]), plan["limits"]
    wait = wait_for_nodes(capacity, state, plan.get("submitted", 0.0))
    limits = {**limits, "start": round(limits["start"] + wait, 1)}
    here: RunPlan = {**plan, "rate": placement["rate"], "machine": dict(placement["machine"]), "limits": limits}
    ending = _ending(capacity, placement)
    return here if ending is None else {**here, "ending": ending}


def _ending(capacity: PlacedCapacity, here: Placement) -> Ending | None:
    """The end of a run in the Capacity Block of the placement *here*; None where it goes on in another group."""
    block = here.get("block")
    if block is None or any(
        "block" not in each or each["block"]["leave"] > block["leave"] for each in capacity["placements"]
    ):
        return None
    reason = "the Capacity Block %s ends at %s; %s" % (block["reservation"], utc(block["end"]), _NO_OTHER)
    return {"at": block["leave"], "reason": reason}


def wait_for_nodes(capacity: PlacedCapacity, state: State, submitted: float) -> float:
    """Seconds for which a gang may wait for its nodes where it is placed, before it is moved or the time is over."""
    deadline = capacity["deadline"]
    if deadline is None:
        return capacity["patience"] if next_group(state) else 0.0
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
    decision: Decision = {
        "t": moment,
        "group": placement["name"],
        "type": machine["type"],
        "market": machine["market"],
        "rate": placement["rate"],
        "reason": reason,
    }
    if "block" in placement:
        decision["starts"] = placement["block"]["start"]
    return decision
