"""What the policy expects a job to cost: never more where more is allowed or less is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.capacity.choice import Moment, Planner
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from tests.unit.capacity.markets import described

HOUR = 3600.0
TICKS = st.lists(st.sampled_from([[1] * 12, [1] * 3, [0] * 6, [0] * 2]), min_size=1, max_size=20)
ZONES = st.lists(TICKS, min_size=1, max_size=3)
JOBS = st.builds(
    lambda work, slack, overhead, lost: Job(work, work + overhead + slack, overhead=overhead, lost_work=lost),
    work=st.sampled_from([0.5 * HOUR, HOUR, 4 * HOUR]),
    slack=st.sampled_from([600.0, HOUR, 6 * HOUR]),
    overhead=st.sampled_from([60.0, 600.0, 1200.0]),
    lost=st.sampled_from([0.0, 0.0, 900.0]),
)


def market(zones: Sequence[Sequence[list[int]]], price: float = 1.0) -> Market:
    """A market of these zones, each of stretches with and without a node, in which all of them end at one time."""
    ticks = [[*chain.from_iterable(zone)] for zone in zones]
    longest = max(map(len, ticks))
    return described(*([0] * (longest - len(each)) + each for each in ticks), price=price)


def expected(job: Job, seen: Market) -> float:
    """Dollars that the policy expects at the start of *job*, after it saw this market."""
    one = np.zeros(1)
    modes = [0.0, seen.on_demand, *seen.price[:, -1]]
    moment = Moment(
        elapsed=0.0,
        tick=seen.step,
        mode=np.zeros(1, dtype=np.int64),
        starting=one,
        work=one + job.work,
        unsaved=one,
        spent=one,
        state=seen.states(job.sizes)[:, -1:],
        price=np.array([modes]),
        usable=np.array([[True, True, *(seen.offered[:, -1] > 0)]]),
    )
    choice = Planner(job, lambda _: seen).choose(moment)
    return float(choice.expected[0, choice.mode[0]])


@given(zones=ZONES, job=JOBS, later=st.sampled_from([600.0, 2 * HOUR, 12 * HOUR]))
@settings(max_examples=15)
def test_a_later_deadline_is_never_expected_to_cost_more(zones: list[list[list[int]]], job: Job, later: float) -> None:
    """The time after the end of the work counted as time without nodes."""
    seen = market(zones)
    assert expected(replace(job, deadline=job.deadline + later), seen) <= expected(job, seen) * 1.002


@given(zones=ZONES, job=JOBS, price=st.floats(0.2, 2.9), share=st.floats(0.5, 1.0))
@settings(max_examples=15)
def test_a_lower_price_is_never_expected_to_cost_more(
    zones: list[list[list[int]]], job: Job, price: float, share: float
) -> None:
    assert expected(job, market(zones, price * share)) <= expected(job, market(zones, price)) * 1.005


@given(zones=ZONES, job=JOBS, another=TICKS)
@settings(max_examples=15)
def test_another_zone_is_never_expected_to_cost_more(
    zones: list[list[list[int]]], job: Job, another: list[list[int]]
) -> None:
    fewer = market(zones[:2])
    nodes = ([0] * fewer.ticks + [*chain.from_iterable(another)])[-fewer.ticks :]
    assert expected(job, described(*fewer.available.tolist(), nodes)) <= expected(job, fewer) * 1.005


def test_an_hour_of_work_on_nodes_that_last_is_expected_to_cost_an_hour_and_its_start() -> None:
    always = described([1] * 2000)
    job = Job(HOUR, 24 * HOUR, overhead=600.0)
    assert expected(job, always) == pytest.approx(7 / 6, rel=0.02)
