"""The decision about one job: which nodes to request, to keep or to wait for, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spotmpi.agent.protocol import counted
from spotmpi.capacity.blocks import choose_block, without_blocks
from spotmpi.capacity.choice import FIT_AGAIN, Choice, Moment, Planner, mode_speeds, too_late
from spotmpi.capacity.job import Job, hours
from spotmpi.capacity.market import Market
from spotmpi.capacity.placement import (
    CAPACITY_BLOCK,
    CapacityPool,
    Decision,
    DecisionClock,
    Keep,
    Observation,
    Offer,
    Placement,
    Start,
    State,
    Switch,
    Wait,
)
from spotmpi.capacity.values import NONE, ON_DEMAND, SPOT


class NothingOffered(ValueError):
    """No nodes are offered on a market that the job needs."""


def decide(state: State, offers: Sequence[Offer], history: Sequence[Observation], clock: DecisionClock) -> Decision:
    """What to do now: the cheapest in expectation of what cannot miss the deadline or the budget.

    The last safe moment goes to on-demand nodes, and a switch has to pay for its start and more. ``history`` may begin
    before the job, and is better with it; the offers of now need not be in it. A Capacity Block costs next to nothing,
    so the job is in it where that gains anything, and waits for it where it has time for all of the work.

    Raises:
        NothingOffered: the deadline is to be kept, and no on-demand nodes are offered; or only spot nodes are allowed,
            and none are offered.
    """
    if state.work <= 0:
        return Keep("the work is done")
    blocks = [offer for offer in offers if offer.market == CAPACITY_BLOCK and offer.available != 0]
    chosen = choose_block(state, blocks, clock)
    if chosen is not None:
        return _in_block(state, *chosen)
    beside = without_blocks(state, blocks, clock)
    view = _View.of(beside, offers, history, clock)
    choice = view.planner.choose(view.moment)
    mode = int(choice.mode[0])
    reason = _reason(view, choice)
    if beside.job is not state.job:
        reason += "; without the work and the time of its Capacity Blocks"
    if mode == NONE:
        return Wait(reason)
    if mode == view.moment.mode[0]:
        return Keep(reason)
    placement = view.placement(mode)
    return Start(placement, reason) if beside.placement is None else Switch(placement, reason)


def _in_block(state: State, block: Offer, reason: str) -> Decision:
    here, nodes = state.placement, state.job.sizes[-1]
    if here is not None and block.has(here):
        return Keep(reason)
    placement = Placement(block.zone, block.market, block.instance_type, nodes, block.reservation)
    return Start(placement, reason) if here is None else Switch(placement, reason)


@dataclass(frozen=True)
class _View:
    """State, offers and history as the arrays of a choice."""

    state: State
    clock: DecisionClock
    market: Market
    on_demand: Offer
    planner: Planner
    moment: Moment

    @classmethod
    def of(cls, state: State, offers: Sequence[Offer], history: Sequence[Observation], clock: DecisionClock) -> _View:
        """What the policy knows at a time: the offers that the job may use, and what was seen of them since its start.

        Raises:
            NothingOffered: there are no nodes of the only market that it may use.
        """
        job = state.job
        allowed = [offer for offer in offers if _allowed(job, offer)]
        on_demand = _on_demand(state, allowed)
        spot = {offer.pool: offer for offer in allowed if offer.market == "spot"}
        if not spot and job.market == "spot":
            raise NothingOffered("no spot nodes are offered; check zones and instance_types")
        here = state.placement
        if here is not None and here.market == "spot":  # its pool may be offered no more, but the nodes are there
            pool = CapacityPool(here.zone, here.instance_type)
            known = [each.offer for each in history if each.offer.pool == pool and each.offer.market == "spot"]
            price = known[-1].price if known else on_demand.price
            spot.setdefault(pool, Offer(here.zone, "spot", here.instance_type, price, here.nodes))
        if not spot:
            spot = {on_demand.pool: Offer(on_demand.zone, "spot", on_demand.instance_type, on_demand.price, 0)}
        seen = _observed(job, spot, on_demand, history, clock)
        before = seen.upto(max(1, seen.ticks - int(clock.elapsed % FIT_AGAIN // clock.tick) - 1))
        values = before.available.tobytes(), before.price.tobytes()
        planner = _planner(job, before.pools, values, before.on_demand, before.step)
        return cls(state, clock, seen, on_demand, planner, _moment(state, seen, on_demand, clock))

    @property
    def slack(self) -> float:
        """Seconds until the last safe moment; infinite if the deadline is only a wish."""
        return self.state.job.slack(self.clock.elapsed, self.state.work)

    def placement(self, mode: int) -> Placement:
        """The placement that a mode stands for."""
        job = self.state.job
        if mode == ON_DEMAND:
            nodes = job.sizes[job.on_demand_size]
            return Placement(self.on_demand.zone, "on-demand", self.on_demand.instance_type, nodes)
        index, size = divmod(mode - SPOT, len(job.sizes))
        pool = self.market.pools[index]
        return Placement(pool.zone, "spot", pool.instance_type, job.sizes[size])

    def name(self, mode: int) -> str:
        """A mode in words."""
        return "to wait" if mode == NONE else str(self.placement(mode))


@lru_cache(maxsize=2)  # what it plans with is the same for a day, in which it is asked again and again
def _planner(
    job: Job, pools: tuple[CapacityPool, ...], values: tuple[bytes, bytes], on_demand: float, step: float
) -> Planner:
    """The planner of *job* on the market of which these are the *values*: nodes and prices."""
    available, price = np.frombuffer(values[0], np.int64), np.frombuffer(values[1])
    shape = len(pools), -1
    before = Market(pools, available.reshape(shape), price.reshape(shape), on_demand, step)
    return Planner(job, lambda _: before)


def _allowed(job: Job, offer: Offer) -> bool:
    markets = {"spot": ("spot",), "on-demand": ("on-demand",), "auto": ("spot", "on-demand")}[job.market]
    zone = not job.zones or offer.zone in job.zones
    return zone and offer.market in markets and (not job.instance_types or offer.instance_type in job.instance_types)


def _on_demand(state: State, offers: Sequence[Offer]) -> Offer:
    """The on-demand offer to fall back to: the present one, else the cheapest that was not refused."""
    job, here = state.job, state.placement
    found = [offer for offer in offers if offer.market == "on-demand"]
    if not found:
        if job.on_demand_allowed:
            remedy = 'no on-demand nodes are offered in the allowed zones: allow more, or set market = "spot"'
            raise NothingOffered(remedy)
        return Offer("", "on-demand", "", max(offer.price for offer in offers) if offers else 0.0)

    def rank(offer: Offer) -> tuple[bool, bool, float, str]:
        held = (
            here is not None
            and here.market == "on-demand"
            and (here.zone, here.instance_type)
            == (
                offer.zone,
                offer.instance_type,
            )
        )
        return not held, not _has(offer, job.sizes[job.on_demand_size]), offer.price, offer.zone

    return min(found, key=rank)


def _has(offer: Offer, nodes: int) -> bool:
    return offer.available is None or offer.available >= nodes


def _observed(
    job: Job, spot: dict[CapacityPool, Offer], on_demand: Offer, history: Sequence[Observation], clock: DecisionClock
) -> Market:
    """The market at ticks that are whole since the start, up to now; the last of them is now."""
    pools = sorted(spot)
    records: dict[CapacityPool, list[Observation]] = {pool: [] for pool in pools}
    for each in sorted(history, key=lambda each: each.at):
        if each.offer.market == "spot" and each.offer.pool in records and each.at <= clock.elapsed:
            records[each.offer.pool].append(each)
    first = min([0.0, clock.elapsed, *(known[0].at for known in records.values() if known)]) // clock.tick
    ticks = int(clock.elapsed // clock.tick - first) + 1
    times = (first + np.arange(ticks)) * clock.tick
    available, price = np.zeros((len(pools), ticks), dtype=np.int64), np.zeros((len(pools), ticks))
    for row, pool in enumerate(pools):
        known = records[pool] or [Observation(0.0, spot[pool])]
        column = np.clip(np.searchsorted([each.at for each in known], times, side="right") - 1, 0, None)
        available[row] = np.array([_nodes(job, each.offer) for each in known])[column]
        price[row] = np.array([each.offer.price for each in known])[column]
        available[row, -1], price[row, -1] = _nodes(job, spot[pool]), spot[pool].price
    return Market(tuple(pools), available, price, on_demand.price, clock.tick)


def _nodes(job: Job, offer: Offer) -> int:
    """The nodes of an offer, as many as the job may want if it is unknown."""
    return job.sizes[-1] if offer.available is None else offer.available


def _moment(state: State, seen: Market, on_demand: Offer, clock: DecisionClock) -> Moment:
    """The job as arrays over one job, as `choice` takes it; *seen* are the spot pools."""
    job, here = state.job, state.placement
    sizes = np.array(job.sizes * len(seen.pools), dtype=np.int64)
    pool = np.repeat(np.arange(len(seen.pools)), len(job.sizes))
    price = np.concatenate([[0.0, on_demand.price * job.sizes[job.on_demand_size]], seen.price[pool, -1] * sizes])
    fallback = job.on_demand_allowed and _has(on_demand, job.sizes[job.on_demand_size])
    usable = np.concatenate([[True, fallback], seen.offered[pool, -1] >= sizes])
    mode = NONE
    if here is not None and here.market == "on-demand":
        mode, usable[ON_DEMAND] = ON_DEMAND, True
    elif here is not None:
        row = seen.pools.index(CapacityPool(here.zone, here.instance_type))
        mode = SPOT + row * len(job.sizes) + job.sizes.index(here.nodes)
        usable[mode] = price[mode] <= on_demand.price * sizes[mode - SPOT]
    return Moment(
        elapsed=clock.elapsed,
        tick=max(0.0, min(clock.tick, job.deadline - clock.elapsed)),
        mode=np.array([mode]),
        starting=np.array([state.starting]),
        work=np.array([state.work]),
        unsaved=np.array([state.unsaved]),
        spent=np.array([state.spent]),
        state=seen.states(job.sizes)[:, -1:],
        price=price[None, :],
        usable=usable[None, :],
    )


def _reason(view: _View, choice: Choice) -> str:
    """Why this mode, with the figures that decided."""
    job, moment, mode = view.state.job, view.moment, int(choice.mode[0])
    expected = choice.expected[0]
    possible = np.flatnonzero(moment.usable[0] & choice.safe[0] & np.isfinite(expected))
    others = [other for other in possible.tolist() if other != mode]
    until = job.deadline - view.clock.elapsed
    left = f"{hours(view.state.work)} of work left, "
    left += f"{hours(until)} to the deadline" if until > 0 else f"{hours(-until)} after the deadline"
    now = _spot_now(view) if mode == NONE else f"${moment.price[0, mode]:.2f} per hour"
    start = f"and a start takes {hours(job.overhead)}"
    if too_late(job, moment)[0]:
        stays = mode == moment.mode[0] != NONE
        if not stays or view.state.starting + view.state.work / mode_speeds(job, len(view.market.pools))[mode] > until:
            return f"{now}; too late for the deadline: {left}, {start}"
        if mode != ON_DEMAND:
            return f"{now}, kept as on-demand nodes would be too late: {left}, {start}"
    rate = f"{now}{';' if mode == NONE else ','} ${expected[mode]:.2f} expected to the end"
    if mode == ON_DEMAND and not others:
        if job.market == "on-demand":
            return f"{rate}; only on-demand nodes are allowed; {left}"
        if view.slack >= moment.tick and job.budget is not None:
            return f"{now}; the budget has to pay for on-demand nodes: {_budget(view)}; {left}"
        return f"last safe moment: {left}, {start}"
    if mode == NONE and not choice.safe[0, NONE]:
        return f"nothing is available, not even on-demand nodes, and the deadline is at risk: {left}"
    if not others and mode == NONE and moment.usable[0, SPOT:].any() and job.budget is not None:
        return f"{now}; the budget does not pay for them: {_budget(view)}; {left}"
    if not others:
        return f"{rate}; {left}"
    best = min(others, key=lambda other: float(expected[other]))
    gap = float(expected[best] - expected[mode])
    comparison = f"${abs(gap):.2f} {'less' if gap >= 0 else 'more'} than {view.name(best)}"
    if gap < 0:
        comparison += ", which saves too little" if best == NONE else ", which does not pay for a start"
    slack = f"; {hours(view.slack)} to the last safe moment" if mode == NONE and job.on_demand_allowed else ""
    return f"{rate}, {comparison}; {left}{slack}"


def _budget(view: _View) -> str:
    return f"${view.state.spent:.2f} of ${view.state.job.budget or 0.0:.2f} is spent"


def _spot_now(view: _View) -> str:
    """What spot pools have at this moment; for a job of on-demand nodes, that these are not there."""
    market, least = view.market, view.state.job.sizes[0]
    if view.state.job.market == "on-demand":
        return f"{view.on_demand.zone} has no {counted(least, 'on-demand node')}"
    usable = [index for index in range(len(market.pools)) if market.offered[index, -1] >= least]
    if not usable:
        return f"no zone has {counted(least, 'spot node')}"
    cheapest = min(usable, key=lambda index: float(market.price[index, -1]))
    return f"spot nodes cost ${market.price[cheapest, -1]:.2f} each per hour in {market.pools[cheapest].zone}"
