"""What a run with a deadline has to have before it is submitted, where it begins, and what it is expected to cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

from spotmpi.backends.kubernetes.submit import capacity_blocks
from spotmpi.backends.kubernetes.submit.target import no_placement_account, placement_rates
from spotmpi.core.errors import Problem, SpotmpiError
from spotmpi.core.wording import counted, dollars, duration
from spotmpi.plan.cluster import ClusterTarget, beginning_on
from spotmpi.plan.placement import Beginning
from spotmpi.spec import roles
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import own_prices

if TYPE_CHECKING:
    from spotmpi.agent.plan import Block, Forecast
    from spotmpi.capacity.job import Job
    from spotmpi.capacity.market import Market
    from spotmpi.capacity.placement import Offer, OfferMarket, State
    from spotmpi.core.environment import Environment, NodeGroup


def problems(spec: JobSpec, environment: Environment | None, now: datetime) -> Iterable[Problem]:
    """Why the work of *spec* cannot be done by its deadline in *environment*; none where it has no deadline."""
    if spec.capacity.deadline is None or environment is None or not environment.node_groups:
        return
    from spotmpi.capacity import requirements
    from spotmpi.capacity.job import hours

    if spec.price is not None:
        remedy = "is one price for all markets, by which none is better: give capacity.prices for each node group"
        yield Problem("price", spec.price, remedy)
    price = None
    # Where the run fits no group, which another problem says, prices and quotas can be missing, too.
    choices = roles.nearest(spec, environment.node_groups)
    gang = choices[0]
    if gang.fallbacks and environment.placement_account is None:
        yield no_placement_account("capacity.deadline", environment)
    fallback = [each for each in gang.every_group if each.market == "on-demand"]
    try:
        rates = placement_rates(spec, environment, choices)
        price = min((rates[each.name] for each in fallback), default=0.0) / spec.nodes or None
    except SpotmpiError as error:
        pairs = zip(choices, roles.role_specs(spec), strict=False)
        used = [each for choice, role in pairs if not role.price for each in choice.every_group]
        own = own_prices(spec, used)
        groups = " and ".join(dict.fromkeys(each.name for each in used if each.name not in own))
        yield Problem(
            "capacity.prices", own or None, f"needed of {groups} for a deadline, since AWS tells none: {error}"
        )
    yield from _quota_problems(spec, environment, fallback)
    job, missing = requirements.job_of(spec, now)
    if not missing:
        if "patience" in spec.capacity.model_fields_set and 0 < job.deadline <= spec.capacity.patience:
            remedy = (
                f"no other node group would be asked in the {hours(job.deadline)} to the deadline: set less than that"
            )
            yield Problem("capacity.patience", duration(spec.capacity.patience), remedy)
        yield from requirements.problems(replace(_with_patience(job, spec), sizes=(spec.nodes,), speeds=(1.0,)), price)


def _with_patience(job: Job, spec: JobSpec) -> Job:
    """*job* whose starts take as long as its controller allows for: node 0 of several numbers waits for the most."""
    return replace(job, overhead=job.overhead + spec.capacity.patience) if len(job.sizes) > 1 else job


def _quota_problems(spec: JobSpec, environment: Environment, groups: Sequence[NodeGroup]) -> Iterable[Problem]:
    """Why the account may have too few on-demand nodes in each of *groups*; none where AWS does not tell its quotas."""
    from spotmpi.aws import quotas
    from spotmpi.aws.account import open_account
    from spotmpi.aws.eks import require_account

    nodes, region = spec.nodes + spec.standby, environment.region
    lacks = []
    try:
        aws = open_account(region)
        require_account(aws, environment.cluster_arn)
        for group in groups:
            needed, code = nodes * group.vcpus, quotas.quota_code(group.type, quotas.ON_DEMAND)
            allowed = needed if code is None else quotas.limit(aws, region, code)
            if code is None or allowed >= needed:
                return
            command = quotas.increase_command(region, quotas.SERVICE, code, needed)
            quota = f"the quota {quotas.NAMES[code]} ({code}) allows {counted(allowed, 'vCPU')} in {region}"
            lacks.append(f"{quota}, and {nodes} x {group.type} have {needed} (`{command}`)")
    except SpotmpiError:
        return
    if lacks:
        remedy = 'request an increase, use fewer nodes, or set capacity.market = "spot", which may be late'
        text = f"the deadline needs on-demand nodes, and {'; '.join(lacks)}: {remedy}"
        yield Problem("capacity.market", spec.capacity.market, text)


def begin(
    spec: JobSpec, target: ClusterTarget, rates: Mapping[str, float], now: datetime, blocks: Mapping[str, Block]
) -> tuple[ClusterTarget, Beginning, list[str]]:
    """*target* with the node group first on which a valid run begins, why, and notes on what to expect of it.

    *blocks* are the Capacity Blocks of its node groups, by group.
    """
    if spec.capacity.deadline is None:
        return target, capacity_blocks.beginning(target, blocks, now), capacity_blocks.notes(blocks)
    if not target.order:
        note = "capacity.deadline: the run fits one node group alone, so there is nothing to choose"
        return target, Beginning(), [note]
    from spotmpi.capacity import requirements
    from spotmpi.capacity.controller import TICK
    from spotmpi.capacity.placement import DecisionClock, Start, State
    from spotmpi.capacity.policy import decide

    job, _ = requirements.job_of(spec, now)
    tick = min(TICK, job.deadline / 100)
    offers = _offers(spec, target, rates, now, blocks)
    state = State(job, None, job.work)
    decision = decide(replace(state, job=_with_patience(job, spec)), [*offers.values()], [], DecisionClock(0.0, tick))
    others = {name: offer for name, offer in offers.items() if name not in blocks}
    first = min(others, key=lambda name: others[name].price)  # who waits asks as well
    if isinstance(decision, Start):
        first = next(name for name, each in offers.items() if each.has(decision.placement))
    market = _market([*others.values()], spec.nodes, tick)
    forecast, note = _forecast(state, [offers[name] for name in blocks], market, rates[first])
    notes = [note, f"deadline: begins on {first}: {decision.reason}", *capacity_blocks.notes(blocks)]
    return beginning_on(target, first), Beginning(decision.reason, forecast, blocks), notes


def _forecast(state: State, blocks: Sequence[Offer], market: Market, rate: float) -> tuple[Forecast, str]:
    """What the run is expected to cost, and the note that says so.

    Work that is done in *blocks* costs *rate* US dollars per hour, all other what *market* does.
    """
    from spotmpi.capacity.blocks import without_blocks
    from spotmpi.capacity.expectation import expect
    from spotmpi.capacity.job import chance
    from spotmpi.capacity.placement import DecisionClock

    job = state.job
    beside = without_blocks(state, blocks, DecisionClock(-1.0))  # one that has started counts, too
    expected = expect(replace(beside.job, work=beside.work), market)
    if beside.work <= 1.0:  # all of it is done in blocks
        cost = rate * (job.work + job.overhead) / 3600.0
        expected = replace(expected, dollars=cost, low=cost, high=cost, in_time=1.0)
    on_demand = job.on_demand_cost(market.on_demand)
    forecast: Forecast = {
        "dollars": round(expected.dollars, 2),
        "low": round(expected.low, 2),
        "high": round(expected.high, 2),
        "in_time": round(expected.in_time, 3),
        "on_demand": round(on_demand, 2),
        "deadline": job.deadline,
    }
    note = (
        f"deadline: expected to cost {dollars(expected.dollars)} (90 % of cases: {dollars(expected.low)} to "
        f"{dollars(expected.high)}), {chance(expected.in_time)}; on-demand nodes alone: "
        f"{dollars(on_demand)}; spot nodes are assumed to come and go as they usually do"
    )
    return forecast, note


def _offers(
    spec: JobSpec, target: ClusterTarget, rates: Mapping[str, float], now: datetime, blocks: Mapping[str, Block]
) -> dict[str, Offer]:
    """The offer of each node group, of which nobody knows yet whether it has nodes."""
    from spotmpi.capacity.placement import Offer

    offers = {}
    for group in (dict(each.machine) for each in target.order):
        name, market = group["node_group"], cast("OfferMarket", group["market"])
        offer = Offer(group["zone"], market, group["type"], rates[name] / spec.nodes)
        if block := blocks.get(name):
            start, end = (max(0.0, block[key] - now.timestamp()) for key in ("start", "leave"))
            offer = replace(offer, reservation=block["reservation"], start=start, end=end)
        offers[name] = offer
    return offers


def _market(offers: Sequence[Offer], nodes: int, tick: float) -> Market:
    """The market of *offers* without any history: all have nodes now."""
    import numpy as np

    from spotmpi.capacity.market import Market

    prices = [offer.price for offer in offers if offer.market == "on-demand"]
    highest = min(prices, default=max(offer.price for offer in offers))
    spot = [offer for offer in offers if offer.market == "spot"]
    pools = tuple(offer.pool for offer in spot or offers)
    available = np.full((len(pools), 1), nodes if spot else 0)
    return Market(pools, available, np.array([[offer.price] for offer in spot or offers]), highest, tick)
