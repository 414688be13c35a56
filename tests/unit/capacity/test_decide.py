"""The decision about one job."""

from __future__ import annotations

import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from spotmpi.capacity.choice import setting
from spotmpi.capacity.job import Job, MarketName
from spotmpi.capacity.placement import (
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
from spotmpi.capacity.policy import NothingOffered, decide
from spotmpi.capacity.simulation import planned
from tests.unit.capacity.controller import replay
from tests.unit.capacity.markets import recorded

HOUR = 3600.0
JOB = Job(work=4 * HOUR, deadline=8 * HOUR, sizes=(4,), overhead=600.0)
A, B = "us-east-1a", "us-east-1b"


def spot(zone: str, price: float = 1.0, available: int | None = 4) -> Offer:
    return Offer(zone, "spot", "g5.xlarge", price, available)


def on_demand(available: int | None = None, price: float = 3.0) -> Offer:
    return Offer(A, "on-demand", "g5.xlarge", price, available)


def running(zone: str, market: str = "spot", work: float = 4 * HOUR, job: Job = JOB) -> State:
    placement = Placement(zone, "spot" if market == "spot" else "on-demand", "g5.xlarge", 4)
    return State(job, placement, work)


def idle(work: float = 4 * HOUR, job: Job = JOB) -> State:
    return State(job, None, work)


def at(elapsed: float) -> DecisionClock:
    return DecisionClock(elapsed)


def placed(decision: Decision) -> Placement:
    assert isinstance(decision, Start | Switch)
    return decision.placement


def test_work_that_is_shorter_than_a_step_of_the_plan_costs_no_more_than_it_does() -> None:
    day = Job(work=60.0, deadline=24 * HOUR, sizes=(2,), overhead=300.0)
    decision = decide(idle(60.0, day), [spot(A, 0.5, None), on_demand(price=20.0)], [], at(0.0))
    assert placed(decision).market == "spot", decision.reason
    short = Job(work=30.0, deadline=400.0, sizes=(2,), overhead=120.0)
    decision = decide(idle(28.0, short), [spot(A, 0.5, 0), on_demand(price=20.0)], [], DecisionClock(23.0, 3.0))
    assert isinstance(decision, Wait), decision.reason


def test_a_job_starts_on_the_cheapest_spot_nodes() -> None:
    decision = decide(idle(), [spot(A, 1.2), spot(B, 1.0), on_demand()], [], at(0))
    assert isinstance(decision, Start)
    assert decision.placement == Placement(B, "spot", "g5.xlarge", 4)
    assert "$4.00 per hour" in decision.reason and "expected to the end" in decision.reason


def test_it_waits_while_there_is_time_and_says_for_how_long() -> None:
    decision = decide(idle(2 * HOUR), [spot(A, available=0), on_demand()], [Observation(0, spot(A))], at(600))
    assert isinstance(decision, Wait)
    assert "no zone has 4 spot nodes" in decision.reason
    assert "5 h 40 min to the last safe moment" in decision.reason


def test_a_wait_ends_once_no_start_on_spot_nodes_would_be_of_use() -> None:
    """Ten minutes before the last safe moment, which is as long as a start takes."""
    offers, last = [spot(A, available=0), on_demand(price=100.0)], 8 * HOUR - 2 * HOUR - 600
    decision = decide(idle(2 * HOUR), offers, [Observation(0, spot(A))], DecisionClock(last - 900, 300.0))
    assert isinstance(decision, Wait)
    decision = decide(idle(2 * HOUR), offers, [Observation(0, spot(A))], DecisionClock(last - 600, 300.0))
    assert placed(decision).market == "on-demand"


def test_the_last_safe_moment_goes_to_on_demand_though_spot_nodes_are_there() -> None:
    decision = decide(idle(), [spot(A, 0.01), on_demand()], [], at(8 * HOUR - 4 * HOUR - 600))
    assert placed(decision).market == "on-demand"
    assert decision.reason == "last safe moment: 4 h of work left, 4 h 10 min to the deadline, and a start takes 10 min"


def test_spot_nodes_that_are_running_are_kept_as_long_as_a_start_on_demand_is_in_time() -> None:
    offers = [spot(A), on_demand()]
    last = 8 * HOUR - 4 * HOUR - 600
    assert isinstance(decide(running(A), offers, [], at(last)), Keep)
    assert placed(decide(running(A), offers, [], at(last + 60))).market == "on-demand"


def test_a_slightly_cheaper_zone_is_no_reason_to_switch() -> None:
    assert isinstance(decide(running(A), [spot(A, 1.0), spot(B, 0.98), on_demand()], [], at(0)), Keep)


def test_a_decision_is_about_its_own_job_and_market_whatever_was_decided_before() -> None:
    """A plan is made once for the same job on the same market, and is that of no other."""
    offers = [spot(A, 1.5), spot(B, 1.0), on_demand()]
    days = [[spot(A, 1.5), spot(B, 1.0)], [spot(A, 1.5), spot(B, 1.4)], [spot(A, 1.5), spot(B, available=0)]]
    histories = [[Observation(-HOUR * hour, each) for hour in (48, 24) for each in day] for day in days]
    jobs = [JOB, replace(JOB, lost_work=600.0)]
    asked = [(running(A, job=job), history) for history in histories for job in jobs]
    reasons = [decide(state, offers, history, at(0)).reason for state, history in asked]
    assert len(set(reasons)) == len(asked), reasons
    assert [decide(state, offers, history, at(0)).reason for state, history in asked[::-1]] == reasons[::-1]


def test_a_much_cheaper_zone_is_a_reason_to_switch_while_much_work_is_left() -> None:
    offers = [spot(A, 1.5), spot(B, 1.0), on_demand()]
    history = [Observation(-HOUR * hour, each) for hour in (48, 24) for each in offers]
    decision = decide(running(A), offers, history, at(0))
    assert isinstance(decision, Switch)
    assert decision.placement.zone == B
    assert isinstance(decide(running(A, work=300.0), offers, history, at(0)), Keep)


def test_a_zone_that_is_cheap_now_is_taken_though_it_used_to_be_dear() -> None:
    """Prices do not go back at once: on the zone that used to be cheaper the job paid five times as much to its end."""
    history = [Observation(-100 * HOUR, spot(A, 1.9)), Observation(-100 * HOUR, spot(B, 2.1))]
    assert placed(decide(idle(), [spot(A, 2.1), spot(B, 0.4), on_demand()], history, at(0))).zone == B
    assert isinstance(decide(running(A), [spot(A, 1.9), spot(B, 1.85), on_demand()], history, at(0)), Keep)


def test_a_price_that_is_low_now_saves_no_more_than_what_is_paid() -> None:
    """Most of the work is expected on free nodes, which come often: the low price of others saves its share alone."""
    history = [
        Observation(-600.0 * tick, offer)
        for tick in range(300, 0, -1)
        for offer in (spot(A, 0.0, 4 * (tick % 4 > 1)), spot(B, 1.5))
    ]
    offers = [spot(A, 0.0, 0), spot(B, 0.3), on_demand()]
    for job in (JOB, replace(JOB, deadline=72 * HOUR, overhead=1800.0)):
        for state in (idle(1.5 * HOUR, job), running(B, work=1.5 * HOUR, job=job)):
            reason = decide(state, offers, history, at(0)).reason
            found = re.search(r"\$(-?[\d.]+) expected to the end", reason)
            assert found and float(found[1]) >= 0.05, reason


def test_it_returns_from_on_demand_to_spot_when_that_pays() -> None:
    offers = [spot(A), on_demand()]
    history = [Observation(-48 * HOUR, spot(A))]
    assert placed(decide(running(A, "on-demand"), offers, history, at(0))).market == "spot"
    assert isinstance(decide(running(A, "on-demand", work=300.0), offers, history, at(0)), Keep)


@pytest.mark.parametrize("tick", [600.0, 300.0])
@pytest.mark.parametrize("price", [0.6, 1.0])
def test_it_returns_to_spot_however_soon_the_next_decision_could_do_the_same(tick: float, price: float) -> None:
    """Compared with a return at the next decision, one at this decision never saved as much as it had to."""
    job = replace(JOB, work=16 * HOUR, deadline=21 * HOUR, overhead=1800.0)
    history = [Observation((9.8 - 4 * part) * HOUR, spot(A, price, 4 * ((part + 1) % 2))) for part in range(14, -1, -1)]
    state, offers = running(A, "on-demand", 8 * HOUR, job), [spot(A, price), on_demand()]
    assert placed(decide(state, offers, history, DecisionClock(10 * HOUR, tick))).market == "spot"


def test_on_demand_is_kept_to_the_end_if_two_more_starts_would_be_too_late() -> None:
    decision = decide(running(A, "on-demand"), [spot(A, 0.01), on_demand()], [], at(8 * HOUR - 4 * HOUR - 900))
    assert isinstance(decision, Keep)


def test_an_unknown_number_of_nodes_is_asked_for_and_a_refusal_leads_elsewhere() -> None:
    assert placed(decide(idle(), [spot(A, 1.0, None), spot(B, 1.1, None), on_demand()], [], at(0))).zone == A
    assert placed(decide(idle(), [spot(A, 1.0, 0), spot(B, 1.1, None), on_demand()], [], at(0))).zone == B


def test_where_on_demand_is_refused_at_the_last_moment_spot_nodes_are_better_than_none() -> None:
    late = at(8 * HOUR - 4 * HOUR - 300)
    assert placed(decide(idle(), [spot(A), on_demand(0)], [], late)).market == "spot"
    decision = decide(idle(), [spot(A, available=0), on_demand(0)], [], late)
    assert isinstance(decision, Wait)
    assert "the deadline is at risk" in decision.reason


def test_only_allowed_zones_types_and_markets_are_used() -> None:
    offers = [spot(A, 0.5), spot(B, 1.0), on_demand(), Offer(B, "on-demand", "g5.xlarge", 3.0)]
    assert placed(decide(idle(job=replace(JOB, zones=(B,))), offers, [], at(0))).zone == B
    assert placed(decide(idle(job=replace(JOB, market="on-demand")), offers, [], at(0))).market == "on-demand"
    with pytest.raises(NothingOffered, match="no on-demand nodes are offered"):
        decide(idle(job=replace(JOB, instance_types=("p5",))), offers, [], at(0))


def test_spot_nodes_are_given_back_before_the_budget_for_on_demand_is_spent() -> None:
    job = replace(JOB, budget=JOB.on_demand_cost(3.0) + 1.0)
    offers = [spot(A, 2.9), on_demand()]
    assert isinstance(decide(State(job, None, 4 * HOUR, spent=1.0), offers, [], at(0)), Wait | Start)
    decision = decide(State(job, None, 4 * HOUR, spent=1.0), offers, [], at(0))
    assert not isinstance(decision, Start) or decision.placement.market == "on-demand"
    assert (
        placed(decide(State(job, None, 4 * HOUR, spent=0.0), [spot(A, 1.0), on_demand()], [], at(0))).market == "spot"
    )


def test_of_several_sizes_the_one_that_is_there_is_taken() -> None:
    job = Job(4 * HOUR, 16 * HOUR, (4, 8, 16), (0.25, 0.5, 1.0), 300.0)
    offers = [spot(A, available=9), spot(B, available=5), on_demand()]
    assert placed(decide(idle(job=job), offers, [], at(0))).nodes == 8


def test_a_job_that_is_done_needs_nothing() -> None:
    assert isinstance(decide(running(A, work=0.0), [spot(A), on_demand()], [], at(0)), Keep)


@pytest.mark.parametrize(
    ("folder", "zones", "job", "start"),
    [
        ("v100-1", ("us-east-1c", "us-east-1d"), Job(8 * HOUR, 10.4 * HOUR, overhead=720.0), 300),
        ("h100-16", ("us-east4-a", "us-east4-b"), Job(6 * HOUR, 9 * HOUR, (16,), overhead=180.0), 400),
        ("h100-16", ("us-east4-a", "us-east4-b"), Job(26 * HOUR, 30 * HOUR, (8, 16), (0.5, 1.0), 600.0), 200),
    ],
)
def test_decisions_are_those_that_the_simulation_counts(
    folder: str, zones: tuple[str, ...], job: Job, start: int
) -> None:
    market = recorded(folder, zones)
    decisions, outcome = replay(job, market, start)
    expected = planned(job, market, np.array([start]))
    assert outcome.dollars == pytest.approx(expected.dollars)
    assert outcome.starts == expected.starts
    assert outcome.missed == 0
    assert all(decision.reason for _, decision in decisions)


def test_spot_nodes_that_cost_more_than_on_demand_nodes_are_not_kept() -> None:
    decision = decide(running(A), [spot(A, 3.5), on_demand()], [Observation(-HOUR, spot(A, 3.5))], at(0))
    assert isinstance(decision, Wait) or placed(decision).market == "on-demand"


def test_nodes_that_are_no_longer_offered_are_kept_until_they_are_lost() -> None:
    assert isinstance(decide(running(A), [on_demand()], [Observation(-HOUR, spot(A))], at(0)), Keep)


def test_a_job_that_is_late_all_the_same_goes_on_and_says_so() -> None:
    decision = decide(idle(), [spot(A), on_demand()], [], at(9 * HOUR))
    assert placed(decision).market == "on-demand"
    assert "4 h of work left, 1 h after the deadline" in decision.reason


def test_a_start_is_safe_only_if_its_nodes_may_be_lost_before_the_first_iteration() -> None:
    """On-demand nodes are half as fast here, so that a tick of work on spot nodes makes up for the start."""
    job = Job(2 * HOUR, 6 * HOUR, (4, 8), (0.6, 1.0), 300.0)
    offers = [spot(A, 0.1, 8), on_demand()]
    on_demand_time = job.overhead + job.work / 0.6
    assert placed(decide(idle(2 * HOUR, job), offers, [], at(6 * HOUR - on_demand_time - 300))).market == "spot"
    assert placed(decide(idle(2 * HOUR, job), offers, [], at(6 * HOUR - on_demand_time - 200))).market == "on-demand"


def test_no_nodes_are_paid_that_would_be_left_before_their_first_iteration() -> None:
    """A start takes 3 hours, and in 2 the last safe moment comes: spot nodes were paid up to then."""
    job = Job(4 * HOUR, 9 * HOUR, (4,), overhead=3 * HOUR)
    decision = decide(idle(4 * HOUR, job), [spot(A, 0.1), on_demand()], [], at(0))
    assert isinstance(decision, Wait) or placed(decision).market == "on-demand"
    longer = replace(job, deadline=11 * HOUR)
    assert placed(decide(idle(4 * HOUR, longer), [spot(A, 0.1), on_demand()], [], at(0))).market == "spot"


def test_a_job_of_on_demand_nodes_alone_begins_at_once_and_says_why() -> None:
    """It waited up to the last safe moment for spot nodes that it may not have, and called each moment the last one."""
    job = replace(JOB, deadline=20 * HOUR, market="on-demand")
    decision = decide(idle(job=job), [spot(A), on_demand()], [], at(0))
    assert placed(decision).market == "on-demand"
    expected = "$12.00 per hour, $50.00 expected to the end; only on-demand nodes are allowed; 4 h of work left, "
    assert decision.reason == expected + "20 h to the deadline"
    decision = decide(idle(job=job), [spot(A), on_demand(available=0)], [], at(0))
    assert isinstance(decision, Wait) and decision.reason.startswith("us-east-1a has no 4 on-demand nodes; ")


def test_where_the_budget_decides_the_reason_is_the_budget_and_not_the_time() -> None:
    job = replace(JOB, deadline=20 * HOUR, budget=55.0)
    decision = decide(State(job, None, 4 * HOUR, spent=9.0), [spot(A), on_demand()], [], at(0))
    assert placed(decision).market == "on-demand"
    assert "the budget has to pay for on-demand nodes: $9.00 of $55.00 is spent; 4 h of work left" in decision.reason
    cheap = replace(job, market="spot")
    decision = decide(State(cheap, None, 4 * HOUR, spent=54.9), [spot(A)], [], at(0))
    assert isinstance(decision, Wait)
    assert "; the budget does not pay for them: $54.90 of $55.00 is spent; 4 h of work left" in decision.reason


@pytest.mark.parametrize("lost_work", [0.0, HOUR])
def test_a_budget_that_never_pays_for_spot_nodes_is_no_reason_to_wait_for_them(lost_work: float) -> None:
    """Their first start would have to be paid for besides on-demand nodes, so it waited to the last safe moment."""
    enough = JOB.on_demand_cost(3.0)
    job = replace(JOB, deadline=20 * HOUR, budget=enough, lost_work=lost_work)
    for nodes in (4, 0):
        decision = decide(idle(job=job), [spot(A, available=nodes), on_demand()], [], at(0))
        assert placed(decision).market == "on-demand" and "the budget has to pay for on-demand nodes" in decision.reason
    without = decide(idle(job=job), [spot(A), on_demand(available=0)], [], at(0))
    assert isinstance(without, Wait), "the budget holds where no on-demand nodes are there either"
    more = replace(job, budget=enough + 1.0)
    assert placed(decide(idle(job=more), [spot(A), on_demand()], [], at(0))).market == "spot"
    assert isinstance(decide(idle(job=more), [spot(A, available=0), on_demand()], [], at(0)), Wait)


@pytest.mark.parametrize("elapsed", [-1.0, -700.0])
def test_a_clock_that_is_behind_that_of_the_submission_is_no_reason_to_fail(elapsed: float) -> None:
    """An API server has several machines, each with its clock."""
    assert placed(decide(idle(), [spot(A), on_demand()], [], at(elapsed))).zone == A


@pytest.mark.parametrize("market", ["auto", "spot"])
def test_the_memory_of_a_plan_does_not_grow_with_work_that_no_time_is_left_for(market: MarketName) -> None:
    """A pace that fell to a fortieth made a plan of 1.5 GB, in a pod that may have 1 GiB."""
    job = Job(640 * HOUR, 20 * HOUR, (4,), overhead=300.0, market=market)
    offers = [spot(zone) for zone in (A, B, "us-east-1c")] + [on_demand()]
    tracemalloc.start()
    decide(State(job, Placement(A, "spot", "g5.xlarge", 4), job.work), offers, [], at(0))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 150e6


def test_work_that_no_time_is_left_for_costs_what_is_not_done_at_the_deadline() -> None:
    """On spot nodes alone, which are there, and for which every hour of work counts twice after the deadline."""
    job = Job(80 * HOUR, 20 * HOUR, (4,), overhead=300.0, market="spot")
    always = [Observation(-400 * HOUR, spot(A))]
    decision = decide(State(job, Placement(A, "spot", "g5.xlarge", 4), job.work), [spot(A)], always, at(0))
    dollars = float(re.findall(r"[$](\d+[.]\d+) expected", decision.reason)[0])
    assert dollars == pytest.approx(20 * 4 + 60 * 4 * 2, rel=0.03)


def test_no_chance_is_lost_in_the_steps_of_a_plan() -> None:
    """Chances of a step were rounded one by one, so that a step had up to 0.1 % too little, or too much."""
    market = recorded("h100-16", ["us-central1-a", "us-central1-b", "us-central1-c"])
    job = Job(16 * HOUR, 20 * HOUR, (16,), overhead=300.0)
    for ticks in (200, 900, 1500):
        for chain in setting(job, market.upto(ticks), job.deadline).chains:
            assert [sum(row) for row in chain] == pytest.approx([1.0] * len(chain), abs=1e-12)


ZONES = [f"us-east-1{letter}" for letter in "abcdef"]


def test_a_zone_that_is_not_among_the_cheapest_is_used_while_those_have_no_nodes() -> None:
    """A plan has three pools, and with several sizes fewer."""
    history = [Observation(-48 * HOUR, spot(zone, 1.0 + 0.01 * index)) for index, zone in enumerate(ZONES)]
    offers = [spot(zone, 1.0 + 0.01 * index, 4 * (index >= 4)) for index, zone in enumerate(ZONES)]
    for job in (JOB, Job(4 * HOUR, 8 * HOUR, (1, 2, 3, 4), (0.25, 0.5, 0.75, 1.0), 600.0)):
        decision = decide(idle(job=job), [*offers, on_demand()], history, at(0))
        assert placed(decision).zone == ZONES[4]
    for zone in ZONES:
        there = [spot(each, available=4 * (each == zone)) for each in ZONES]
        assert isinstance(decide(running(zone), [*there, on_demand()], history, at(0)), Keep)


def test_where_no_zone_has_nodes_it_says_that_of_all_zones() -> None:
    offers = [*(spot(zone, available=0) for zone in ZONES), on_demand()]
    assert "no zone has 4 spot nodes" in decide(idle(2 * HOUR), offers, [], at(0)).reason


@pytest.mark.parametrize("work", [0.2, 1.0, 8.0, 48.0])
@pytest.mark.parametrize("times", [1.3, 2.0, 20.0])
@pytest.mark.parametrize("overhead", [0.0, 300.0, 3600.0])
def test_without_history_a_job_of_spot_nodes_starts_where_these_may_be(
    work: float, times: float, overhead: float
) -> None:
    job = Job(work * HOUR, max(times * work * HOUR, work * HOUR + 2 * overhead), (4,), overhead=overhead, market="spot")
    clock = DecisionClock(0.0, min(600.0, job.deadline / 100))
    decision = decide(State(job, None, job.work), [spot(A, available=None)], [], clock)
    assert placed(decision).zone == A
    assert "less than to wait" in decision.reason or "more than to wait, which saves too little" in decision.reason


@pytest.mark.parametrize("hours", [7.9, 8.0, 30.0])
def test_a_job_of_spot_nodes_that_cannot_be_in_time_goes_on_and_says_so(hours: float) -> None:
    job = replace(JOB, market="spot")
    decision = decide(idle(job=job), [spot(A), spot(B, 0.9)], [], at(hours * HOUR))
    assert placed(decision).zone == B
    assert decision.reason.startswith("$3.60 per hour; too late for the deadline: 4 h of work left, ")
    assert isinstance(decide(running(A, job=job), [spot(A), spot(B, 0.99)], [], at(hours * HOUR)), Keep)
    assert isinstance(decide(idle(job=job), [spot(A, available=0)], [], at(hours * HOUR)), Wait)


def test_nodes_that_work_are_kept_where_on_demand_nodes_would_be_too_late() -> None:
    offers, clock = [spot(A), on_demand()], DecisionClock(8 * HOUR - 720.0, 60.0)
    decision = decide(running(A, work=300.0), offers, [], clock)
    assert isinstance(decision, Keep), "12 minutes are left: 5 are needed here, and 15 on other nodes"
    kept = "$4.00 per hour, kept as on-demand nodes would be too late: 5 min of work left, 12 min to the deadline"
    assert decision.reason == f"{kept}, and a start takes 10 min"
    assert isinstance(decide(running(A, work=1800.0), offers, [], clock), Keep), "it is late either way"
    decision = decide(idle(300.0), offers, [], clock)
    assert placed(decision).market == "on-demand" and "too late for the deadline" in decision.reason
