"""Places the gang of a run with a deadline: the policy of a run's placement controller, in a pod of its own.

    python -m spotmpi.capacity.controller

It asks `policy.decide`, with what the cluster and the run folder tell: offers are the node groups of the plan, the
history is what they gave so far, and work, iterations and starts are as the run itself measured them. A decision needs
numpy in the image. Without it, or after an error of the policy, the run stays where it is up to the last safe moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

from spotmpi.agent import placement as placed
from spotmpi.agent import pod_context
from spotmpi.agent.launch import sizes_of
from spotmpi.agent.placement_controller import INTERVAL, run
from spotmpi.agent.plan import Placement, RunPlan
from spotmpi.agent.run_progress import NOTHING, Measured, RunProgress
from spotmpi.capacity.job import Job, hours

if TYPE_CHECKING:
    from spotmpi.capacity.placement import Offer

TICK = 600.0  # seconds between decisions about a gang that has all its nodes, less for short runs
_WAIT, _STAY = "wait", "stay"


class Decided(NamedTuple):
    """The node group to be on, or `_WAIT` for nodes, or `_STAY`; and why."""

    group: str
    reason: str


class DeadlinePolicy:
    """The `Policy` of a run's placement controller; *runs* is the folder of run folders."""

    def __init__(self, runs: str = pod_context.RUNS) -> None:
        self._runs = runs
        self._progress: Optional[RunProgress] = None
        self._nodes: Optional[int] = 0  # on which the gang could work at the last decision
        self._measured, self._read_at = NOTHING, -math.inf
        self._closed: Optional[List[str]] = None  # blocks that were not there at the last decision
        self._failure = ""  # of the policy

    def __call__(self, plan: RunPlan, state: placed.State, gang: placed.Gang, now: float) -> Optional[placed.State]:
        """The state that follows from what is seen of the gang at the time *now*; None while nothing does."""
        capacity, sizes = plan["capacity"], sizes_of(plan)
        folder = os.path.join(self._runs, plan["run"])
        following = seen = placed.with_observation(state, gang, capacity, sizes, now)
        nodes, closed = gang.usable(sizes), placed.closed(capacity, now)
        is_new = self._nodes != nodes or self._closed != closed or state["at"] in closed
        is_new = is_new or not 0 <= now - self._read_at < _tick(plan)  # also of an API server whose clock is behind
        if gang.created is not None and (is_new or nodes is None):  # a gang that waits needs a decision at each look
            if is_new:
                self._read(folder, plan, now)
            self._nodes, self._closed = nodes, closed
            view = _View(plan, seen, gang, now, self._measured)
            following = _follow(view, self._decide(view), newly_refused=seen["tried"] != state["tried"])
        if following == state:
            return None
        self._read_at = -math.inf  # the API server may not take it: the next look decides again
        return following

    def _read(self, folder: str, plan: RunPlan, now: float) -> None:
        """Read what the run measured."""
        self._read_at = now
        if self._progress is None:
            self._progress = RunProgress(folder, plan.get("submitted", 0.0))
        with contextlib.suppress(OSError):  # what was known before is still true
            self._measured = self._progress.read(now)

    def _decide(self, view: _View) -> Decided:
        """What `policy.decide` says of *view*, or the last safe moment alone where that cannot be asked."""
        try:
            return _by_policy(view)
        except Exception as error:  # whatever it is, no deadline may be missed for it
            failure = "%s: %s" % (type(error).__name__, error)
            if failure != self._failure:
                sys.stderr.write("%s\n" % failure)
            self._failure = failure
            return _by_last_safe_moment(view, failure)


def _tick(plan: RunPlan) -> float:
    """Seconds between decisions about a gang that has all its nodes."""
    deadline = plan["capacity"]["deadline"]
    assert deadline is not None, "its controller is another one without"
    return max(INTERVAL, min(TICK, math.floor(placed.seconds_to(deadline, plan.get("submitted", 0.0)) / 100)))


class _View:
    """A run as the policy sees it."""

    def __init__(self, plan: RunPlan, state: placed.State, gang: placed.Gang, now: float, measured: Measured) -> None:
        self.state, self.gang, self.now, self.measured = state, gang, now, measured
        self.capacity, self.sizes = plan["capacity"], sizes_of(plan)
        self.size, self.nodes = self.sizes[-1], gang.usable(self.sizes)
        self.whole = self.nodes is not None
        deadline = self.capacity["deadline"]
        assert deadline is not None, "its controller is another one without"
        submitted = plan.get("submitted", now)
        seconds = placed.seconds_to(deadline, submitted)
        self.elapsed = now - submitted
        self.tick = _tick(plan)
        # Of several numbers of nodes node 0 may wait for the most, and the run for a start with fewer.
        patience = plan["elastic"]["patience"] if len(self.sizes) > 1 else 0.0
        overhead = max(self.capacity["overhead"] + patience, math.ceil(self._start_of_nodes() + measured.start))
        self.work = self._work_left(deadline["work"], overhead)
        self.job = Job(
            work=max(deadline["work"], self.work),
            deadline=seconds,
            sizes=tuple(self.sizes),
            speeds=tuple(each / self.size for each in self.sizes),
            overhead=overhead,
            lost_work=deadline["lost_work"],
            market=deadline["market"],
            budget=deadline["budget"],
        )

    def _start_of_nodes(self) -> float:
        """Seconds that nodes took to come: at most of on-demand nodes, else at least, with no wait for capacity."""
        came = [each for each in self.state["seen"] if each["nodes"] and each["waited"] <= self.capacity["patience"]]
        on_demand = [
            each["waited"] for each in came if _market(placed.placement_of(self.capacity, each["group"])) == "on-demand"
        ]
        return max(on_demand) if on_demand else min((each["waited"] for each in came), default=0.0)

    @property
    def iteration_seconds(self) -> Optional[float]:
        """Seconds per iteration on the most nodes, where measured there; else what is known, rather too many."""
        measured, work = self.measured, (self.capacity["deadline"] or {"work": 0.0})["work"]
        seconds_by_nodes = dict(measured.seconds_by_nodes)
        if len(self.sizes) == 1 or not seconds_by_nodes:
            return measured.iteration_seconds
        if self.size in seconds_by_nodes:
            return seconds_by_nodes[self.size]
        nodes, seconds = measured.seconds_by_nodes[-1]
        return max(seconds * nodes / self.size, work / measured.total if measured.total else 0.0)

    @property
    def at(self) -> Placement:
        """The placement of the gang."""
        return placed.placement_of(self.capacity, self.state["at"])

    @property
    def whole_for(self) -> float:
        """Seconds for which the gang has had all its nodes."""
        return self.now - self.state["seen"][-1]["t"] if self.whole else 0.0

    @property
    def starting(self) -> float:
        """Seconds until the gang's first new iteration."""
        return 0.0 if not self.whole or self.measured.iterates else max(0.0, self.job.overhead - self.whole_for)

    @property
    def unsaved(self) -> float:
        """Seconds of work that is lost if the gang moves now: what it did since its newest checkpoint, if it has one.

        A program may write another at the notice, which nobody knows before.
        """
        if not self.whole:
            return 0.0
        if self.iteration_seconds:
            return (self.measured.done - self.measured.stored) * self.iteration_seconds
        return self._unreported(self.job.overhead)

    def _work_left(self, work: float, overhead: float) -> float:
        """Seconds of work that is left, by what was measured, else by the *work* of the spec."""
        measured, least = self.measured, 1.0
        done = measured.done if self.whole else measured.stored
        if self.iteration_seconds and measured.total:
            return max(least, (measured.total - done) * self.iteration_seconds)
        if self.iteration_seconds:
            return max(least, work - done * self.iteration_seconds)
        return max(least, work - self._unreported(overhead))  # it reports no iterations, and stores none

    def _unreported(self, overhead: float) -> float:
        """Seconds of work on the most nodes that a program has done which reports no iterations."""
        return max(0.0, self.whole_for - overhead) * (self.nodes or 0) / self.size

    def available(self, group: Placement) -> Optional[int]:
        """The nodes that *group* has for the run: all, 0 where it gave no gang lately, None where nobody knows."""
        name, here = group["name"], self.state["at"]
        if self.whole and name == here:
            return self.nodes
        if self.whole and _market(self.at) == _market(group) == "spot":
            return 0  # nodes that work are not released for others that may not come
        last = next((each for each in reversed(self.state["seen"]) if each["group"] == name), None)
        refused = last is not None and last["nodes"] == 0
        # A gang that waits asks one spot group after the other, and no block: that is asked by a decision alone.
        is_asked = name in self.state["tried"] and "block" not in group
        later = is_asked or self.now < placed.retry_at(self.state, name, self.capacity["retry"])
        return 0 if refused and later else None


def _by_policy(view: _View) -> Decided:
    """What the policy of simulations decides for the run now."""
    from spotmpi.capacity import policy
    from spotmpi.capacity.placement import DecisionClock, Keep, Observation, State, Wait
    from spotmpi.capacity.placement import Placement as Gang

    groups = {each["name"]: each for each in view.capacity["placements"]}
    submitted = view.now - view.elapsed
    history = [
        Observation(each["t"] - submitted, _offer(view, groups[each["group"]], each["nodes"]))
        for each in view.state["seen"]
    ]
    offers = {name: _offer(view, each, view.available(each)) for name, each in groups.items()}
    here = _offer(view, view.at, None)
    gang = None
    if view.nodes is not None:
        gang = Gang(here.zone, here.market, here.instance_type, view.nodes, here.reservation)
    state = State(view.job, gang, view.work, view.starting, view.measured.spent, view.unsaved)
    decision = policy.decide(state, [*offers.values()], history, DecisionClock(view.elapsed, view.tick))
    if isinstance(decision, (Keep, Wait)):
        return Decided(_STAY if isinstance(decision, Keep) else _WAIT, decision.reason)
    return Decided(next(name for name, each in offers.items() if each.has(decision.placement)), decision.reason)


def _offer(view: _View, group: Placement, nodes: Optional[int]) -> Offer:
    from spotmpi.capacity.placement import Offer

    rate = group["rate"]
    assert rate is not None, "a plan with a deadline has all prices"
    machine, block = group["machine"], group.get("block")
    market: Any = machine["market"]
    offer = Offer(machine["zone"], market, machine["type"], rate / view.size, nodes)
    if block is None:
        return offer
    start, leave = (moment - view.now + view.elapsed for moment in (block["start"], block["leave"]))
    return dataclasses.replace(offer, reservation=block["reservation"], start=start, end=leave)


def _by_last_safe_moment(view: _View, error: str) -> Decided:
    """Without the policy: spot nodes up to the last safe moment."""
    slack = view.job.slack(view.elapsed, view.work) - view.tick
    fallback = [each for each in view.capacity["placements"] if _market(each) == "on-demand"]
    why = "the policy cannot be asked (%s), so only the last safe moment is kept" % error
    if slack > 0 or not fallback or _market(view.at) != "spot":
        return Decided(_STAY if view.whole else _WAIT, why)
    left = "%s of work left, and a start takes %s" % (hours(view.work), hours(view.job.overhead))
    return Decided(fallback[0]["name"], "last safe moment: %s; %s" % (left, why))


def _follow(view: _View, decided: Decided, newly_refused: bool) -> placed.State:
    """The state that follows from a decision."""
    state, here = view.state, view.state["at"]
    closed = placed.closed(view.capacity, view.now)
    if here in closed and decided.group in (_WAIT, _STAY, here):  # its block is over, and the others gave none lately
        others = [each["name"] for each in view.capacity["placements"] if each["name"] not in closed]
        decided = decided._replace(group=others[0])
    idle = placed.idle_values(state, view.gang.idle_since, view.capacity, view.sizes, view.now)
    gave = "%s %s; " % (here, view.gang.shortage(view.capacity, view.sizes, view.now)) if newly_refused else ""
    if decided.group not in (_WAIT, _STAY, here):
        target = placed.placement_of(view.capacity, decided.group)
        return placed.with_decision(
            _asked_until_now(view, target["name"]), target, view.now, gave + decided.reason, idle
        )
    if view.whole or here not in state["tried"]:
        return state
    following = None if decided.group == here else _next_to_ask(view)
    is_partial = view.gang.is_partial_over(view.capacity, view.now) or (following is not None and view.gang.placed > 0)
    if is_partial and (following is None or following["name"] in state["tried"]):
        target, pause = _pause(view, following or view.at, decided)
        if pause is not None and "block" in view.at:
            return _in_block(view, target, pause)
        return state if pause is None else placed.give_back(state, target, view.now, pause, idle)
    if following is not None:
        reason = "%sasked next while waiting: %s" % (gave, decided.reason)
        return placed.with_decision(state, following, view.now, reason, idle)
    is_new = newly_refused and decided.group != here
    return placed.with_decision(state, view.at, view.now, "waits: " + decided.reason) if is_new else state


def _in_block(view: _View, target: Placement, pause: placed.Pause) -> placed.State:
    """The state of a part of a gang in a Capacity Block, which is paid and so kept for a *pause*, before *target*."""
    state, last = view.state, view.state["decisions"][-1]
    if last["group"] != state["at"] or "until" not in last:
        minutes = "%g min" % math.ceil(pause.seconds / 60)
        reason = "%s; they are paid and wait, and %s is asked in %s" % (pause.reason, target["name"], minutes)
        return placed.with_decision(state, view.at, view.now, reason, {"until": view.now + pause.seconds})
    if view.now < last["until"]:
        return state
    return placed.with_decision({**state, "tried": []}, target, view.now, "asked again while waiting: " + pause.reason)


def _asked_until_now(view: _View, target: str) -> placed.State:
    """The state of a run that goes on to *target*: it had asked the spot groups that gave none one by one until now."""
    state, spot = view.state, [each["name"] for each in view.capacity["placements"] if _market(each) == "spot"]
    asked = [] if view.whole else [name for name in state["tried"] if name in spot and name != target]
    entries: List[placed.GroupObservation] = [
        {"t": view.now, "group": name, "nodes": 0, "waited": 0.0}
        for name in asked
        if not any(each["t"] == view.now and each["group"] == name for each in state["seen"])
    ]
    return {
        **state,
        "tried": [name for name in state["tried"] if name != target],
        "seen": [*state["seen"], *entries],
    }


def _next_to_ask(view: _View) -> Optional[Placement]:
    """The group that a waiting gang asks after the present one, once that gave none for the patience."""
    if not view.gang.is_over(view.capacity, view.now):
        return None
    groups = [each for each in view.capacity["placements"] if "block" not in each]
    late = view.job.slack(view.elapsed, view.work) <= view.tick
    asked = [each for each in groups if late or _market(each) == "spot" or view.job.market == "on-demand"]
    names = [each["name"] for each in asked]
    number = names.index(view.state["at"]) + 1 if view.state["at"] in names else 0
    following = asked[number % len(asked)] if asked else view.at
    return None if following["name"] == view.state["at"] else following


def _pause(view: _View, target: Placement, decided: Decided) -> Tuple[Placement, Optional[placed.Pause]]:
    """The group to ask after a pause without nodes, and the pause: on-demand nodes, if the last safe moment ends it.

    No pause goes past that moment, and none begins after it while the deadline can still be kept: nodes are kept then.
    """
    seconds, slack = placed.backoff(view.state, view.capacity), view.job.slack(view.elapsed, view.work)
    left = slack - view.tick
    if left <= 0:
        if slack + view.job.overhead >= 0:
            return target, None
        seconds = view.capacity["partial"]
    elif left < seconds:
        seconds = left
        fallback = [each for each in view.capacity["placements"] if _market(each) == "on-demand"]
        if fallback and _market(target) == "spot":
            target = min(fallback, key=lambda each: each["rate"] or 0.0)
    shortage = view.gang.shortage(view.capacity, view.sizes, view.now)
    return target, placed.Pause("%s %s (%s)" % (view.state["at"], shortage, decided.reason), seconds)


def _market(group: Placement) -> str:
    return group["machine"]["market"]


if __name__ == "__main__":
    sys.exit(run(DeadlinePolicy()))
