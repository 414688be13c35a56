"""The policy for deadlines with a Capacity Block: nodes that are there from a start to an end, and are paid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spotmpi.agent.placement_controller import RequestFailed
from spotmpi.capacity.job import Job
from spotmpi.capacity.placement import Decision, DecisionClock, Keep, Offer, Placement, Start, State, Switch
from spotmpi.capacity.policy import decide
from tests.unit.capacity.placed_run import BLOCK, FAR, LEAVE, NEAR, SIZE, PlacedRun

HOUR, MINUTE = 3600.0, 60.0
JOB = Job(work=4 * HOUR, deadline=24 * HOUR, sizes=(4,), overhead=600.0)
SPOT = Offer("a", "spot", "p5.48xlarge", 1.0, 4)
ON_DEMAND = Offer("a", "on-demand", "p5.48xlarge", 3.0)
THERE = Placement("a", "capacity-block", "p5.48xlarge", 4, "cr-1")


def block(start: float, end: float, available: int | None = None) -> Offer:
    """From and to so many hours after the start of the job."""
    return Offer("a", "capacity-block", "p5.48xlarge", 0.02, available, "cr-1", start * HOUR, end * HOUR)


def decided(
    offer: Offer, hours: float, work: float = 4, placement: Placement | None = None, unsaved: float = 0.0
) -> Decision:
    state = State(JOB, placement, work * HOUR, unsaved=unsaved)
    return decide(state, [SPOT, ON_DEMAND, offer], [], DecisionClock(hours * HOUR))


def market(decision: Decision) -> str:
    assert isinstance(decision, Start | Switch)
    return decision.placement.market


def test_a_job_waits_without_nodes_for_a_block_that_has_time_for_all_of_its_work() -> None:
    decision = decided(block(10, 15), 0)
    assert decision == Start(
        THERE, "the Capacity Block cr-1 starts in 10 h, is paid, and has time for the 4 h of work left"
    )
    spot = Placement("a", "spot", "p5.48xlarge", 4)
    assert isinstance(decided(block(10, 15), 5, placement=spot), Switch)
    assert market(decided(block(10, 14), 0)) == "spot", "the start takes time as well"
    assert market(decided(block(21, 26), 0)) == "spot", "it ends after the deadline"
    assert market(decided(block(10, 15, available=0), 0)) == "spot", "it gave no nodes"


def test_before_a_block_other_nodes_do_only_what_it_has_no_time_for() -> None:
    """Of 4 h, 2 h less two starts are the block's: its own and that of the nodes after it."""
    spot = Placement("a", "spot", "p5.48xlarge", 4)
    decision = decided(block(10, 12), 0, placement=spot)
    assert isinstance(decision, Keep)
    assert decision.reason.endswith("; without the work and the time of its Capacity Blocks")
    assert "2 h 20 min of work left, 22 h to the deadline" in decision.reason
    decision = decided(block(10, 12), 5, 1.8, spot)
    assert isinstance(decision, Switch) and decision.placement == THERE


@pytest.mark.parametrize("here", ["spot", "on-demand", None])
def test_a_block_that_has_started_is_used_for_what_is_left_and_left_at_its_end(here: str | None) -> None:
    placement = Placement("a", "spot" if here == "spot" else "on-demand", "p5.48xlarge", 4) if here else None
    decision = decided(block(10, 12), 10, placement=placement)
    assert isinstance(decision, Start if here is None else Switch) and decision.placement == THERE
    assert decision.reason == "the Capacity Block cr-1 is there for 2 h and paid; 4 h of work left, 2 h 10 min after it"
    assert isinstance(decided(block(10, 12), 11, placement=THERE), Keep)
    assert market(decided(block(10, 12), 12, 2.2, THERE)) == "spot"


def test_a_block_is_not_entered_where_that_gains_nothing_or_makes_the_job_late() -> None:
    stable = Placement("a", "on-demand", "p5.48xlarge", 4)
    gains = decided(block(10, 12), 10, 13.5, stable)
    assert isinstance(gains, Switch) and gains.placement == THERE
    assert isinstance(decided(block(10, 12), 10, 13.8, stable), Keep), "two starts do not fit any more"
    assert isinstance(decided(block(10, 12), 10, 4, stable, unsaved=1.9 * HOUR), Keep), "it would repeat more"
    late = State(replace(JOB, market="spot"), None, 13.9 * HOUR)
    assert market(decide(late, [SPOT, block(10, 12)], [], DecisionClock(10 * HOUR))) == "capacity-block"


WORK, DEADLINE, START = 3 * HOUR, 12 * HOUR, 60.0
CAPACITY = {"deadline": "12h", "work": "3h", "overhead": "5m", "patience": "10m"}


def run_on(folder: Path, start: float, end: float, first: str = NEAR, **free: int) -> PlacedRun:
    groups = (first, *(each for each in (NEAR, FAR, BLOCK) if each != first))
    times = (start * HOUR, end * HOUR)
    return PlacedRun(folder, {BLOCK: SIZE, FAR: SIZE, **free}, int(WORK), START, groups=groups, block=times, **CAPACITY)


def test_a_run_waits_for_its_block_and_does_all_of_its_work_there(tmp_path: Path) -> None:
    run = run_on(tmp_path, 4, 9, BLOCK, near=SIZE)
    run.run_for(4 * HOUR - 10)
    assert run.cluster.suspended and not run.cluster.patches
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended < 4 * HOUR + WORK + 5 * MINUTE and set(run.groups) == {BLOCK}


def test_a_run_does_on_spot_nodes_what_its_block_has_no_time_for_and_the_rest_there(tmp_path: Path) -> None:
    run = run_on(tmp_path, 6, 6 + 2 + LEAVE / HOUR, near=SIZE)
    run.run_for(5.9 * HOUR)
    assert run.cluster.suspended and run.groups == [NEAR, BLOCK]
    assert WORK - 2 * HOUR <= run.stored <= WORK - 2 * HOUR + 25 * MINUTE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= 8 * HOUR and run.groups == [NEAR, BLOCK]


def test_a_run_leaves_a_block_that_ends_before_its_work_is_done(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 1 + LEAVE / HOUR, BLOCK, near=0)
    run.step = 30.0
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.cluster.ended_by_ec2 == 0
    assert run.groups[0] == BLOCK and run.groups[-1] == FAR and run.stored == WORK


def test_a_run_leaves_its_block_also_where_somebody_else_changes_its_jobset_meanwhile(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 1 + LEAVE / HOUR, BLOCK, near=SIZE)
    run.run_for(HOUR - 30)
    run.cluster.meddle = True
    with pytest.raises(RequestFailed):
        run.run_for(60)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.cluster.ended_by_ec2 == 0 and run.groups == [BLOCK, NEAR]


def test_a_block_that_gives_no_nodes_delays_a_run_by_its_patience_each_time_that_it_is_asked(tmp_path: Path) -> None:
    run = run_on(tmp_path, 2, 9, BLOCK, near=SIZE, block=0)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [BLOCK, NEAR, BLOCK, NEAR]
    assert run.ended < 2 * HOUR + WORK + 2 * (10 + 3) * MINUTE


def test_a_run_that_waits_asks_its_block_again_and_says_what_the_block_gave(tmp_path: Path) -> None:
    """A node of it is lost and comes back after 90 minutes, while no spot group has any."""
    run = run_on(tmp_path, 0, 9, BLOCK, near=0)
    run.step = 30.0
    run.run_for(HOUR)
    run.lose_a_node(block=SIZE - 1)
    run.run_for(1.5 * HOUR)
    run.cluster.free[BLOCK] = SIZE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended < 2.5 * HOUR + 2 * HOUR + (60 + 20) * MINUTE
    assert FAR not in run.groups and run.groups[-1] == BLOCK
    lost = run.state["decisions"][1]
    assert lost["group"] == NEAR
    assert lost["reason"].startswith("block gave 3 of 4 nodes, and no other within 5m; $4.00 per hour, ")


def test_a_part_of_a_gang_in_a_block_is_kept_while_no_other_group_is_asked(tmp_path: Path) -> None:
    """Releasing nodes that are paid gains nothing; spot nodes that come are found as soon as after any pause."""
    run = run_on(tmp_path, 0, 11, BLOCK, near=0, block=SIZE - 1)
    run.step = 30.0
    held = []
    while run.seconds < 6 * HOUR:
        run.run_for(run.step)
        held.append(run.cluster.places().count(BLOCK) == SIZE - 1)
        assert not (run.state["moving"] and "until" in run.state["decisions"][-1]), run.state["decisions"][-1]
    assert sum(held) > 0.3 * len(held)
    waits = [each for each in run.state["decisions"] if "until" in each]
    assert all(each["group"] == BLOCK for each in waits)
    assert waits[0]["reason"].startswith("block gave 3 of 4 nodes, and no other within 5m (")
    assert waits[-1]["reason"].endswith("they are paid and wait, and near is asked in 60 min")
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: run.cluster.places() == [NEAR] * SIZE, 7.4 * HOUR)
    assert run.cluster.places() == [NEAR] * SIZE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and FAR not in run.groups


def test_nodes_that_work_are_not_left_for_the_last_minutes_of_a_block() -> None:
    """What is done there would be less than what the start there and the one afterwards cost."""
    spot = Placement("a", "spot", "p5.48xlarge", 4)
    assert isinstance(decided(block(10, 12), 11.7, 4, spot), Keep)
    assert market(decided(block(10, 12), 11.6, 4, spot)) == "capacity-block"
    assert market(decided(block(10, 12), 11.7, 0.1, spot)) == "capacity-block", "all of the work fits"
    assert market(decided(block(10, 12), 11.7, 4)) == "capacity-block", "there are no other nodes"


MORE_SEEDS = pytest.mark.extensive("more blocks of the same kind")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=MORE_SEEDS) for seed in range(2, 8))])
def test_a_deadline_is_kept_with_any_block_that_keeps_its_times(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    start = random.choice([-2.0, 0.0, 0.5, 3.0, 6.0, 11.0])
    end = max(0.7, start + random.choice([0.6, 1.0, 2.0, 5.0]))
    has_time = min(end - LEAVE / HOUR, 12.0) - start > WORK / HOUR + 0.1
    first = BLOCK if start <= 0 or has_time else NEAR
    run = run_on(tmp_path, start, end, first, near=SIZE)
    run.step = 30.0
    while run.ended is None and run.seconds < DEADLINE:
        near = random.choice([0, 1, SIZE, SIZE])
        if NEAR in run.cluster.places() and near < SIZE:
            run.lose_a_node(near=near)
        run.cluster.free[NEAR] = near
        run.run_for(random.choice([10, 60, 200]) * MINUTE)
    assert run.ended is not None and run.ended <= DEADLINE, (start, end, run.state["decisions"])
    assert run.cluster.ended_by_ec2 == 0
