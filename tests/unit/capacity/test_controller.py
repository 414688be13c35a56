"""The policy places a run with a deadline: a real controller and agent's record on a cluster that a test scripts."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotmpi.agent import record
from spotmpi.agent.unpack import unpack
from spotmpi.capacity import policy
from spotmpi.core import archives
from tests.unit.capacity.placed_run import FAR, NEAR, OTHER, SIZE, PlacedRun

pytestmark = pytest.mark.in_memory

MINUTE = 60.0
WORK, DEADLINE, START = 20 * MINUTE, 50 * MINUTE, 60.0
CAPACITY = {"deadline": "50m", "work": "20m", "overhead": "2m", "patience": "3m"}


def run_on(folder: Path, **free: int) -> PlacedRun:
    return PlacedRun(folder, free, int(WORK), START, **CAPACITY)


@pytest.mark.parametrize("mortal", [False, True])
def test_a_run_whose_spot_nodes_vanish_waits_up_to_the_last_safe_moment_and_ends_in_time(
    tmp_path: Path, mortal: bool
) -> None:
    run = run_on(tmp_path, near=SIZE, far=SIZE)
    run.mortal = mortal
    run.run_for(10 * MINUTE)
    assert run.cluster.places() == [NEAR] * SIZE and run.groups == [NEAR]
    run.lose_a_node(near=1)
    run.run_until(lambda: run.state["at"] == FAR, DEADLINE)
    moved = run.seconds
    left = WORK - run.stored
    # A start takes two minutes; shortly before the last moment it costs as much to wait as to start.
    assert DEADLINE - 6 * MINUTE <= moved + left + 2 * MINUTE <= DEADLINE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= DEADLINE
    first, waits, *_, move = run.state["decisions"]
    assert first["reason"] == "it is the cheapest"
    assert waits["group"] == NEAR and waits["reason"].startswith("waits: no zone has 4 spot nodes; $")
    assert "to the last safe moment" in waits["reason"]
    assert move["market"] == "on-demand" and "min to the deadline" in move["reason"]


@pytest.mark.parametrize("mortal", [False, True])
def test_a_run_of_which_a_pod_that_stands_by_took_over_a_lost_node_goes_on_where_it_is(
    tmp_path: Path, mortal: bool
) -> None:
    run = PlacedRun(tmp_path, {NEAR: SIZE + 1, FAR: SIZE + 1}, int(WORK), START, **CAPACITY, standby=1)
    run.mortal = mortal
    run.run_for(10 * MINUTE)
    run.cluster.free[NEAR] = SIZE
    run.cluster.replace_a_pod()  # which finds no node any more
    run.run_until(lambda: False, DEADLINE)
    assert run.groups == [NEAR] and run.ended is not None
    assert run.ended <= WORK + 3 * START, "one more start, and what was done since the last checkpoint"


def test_a_part_of_a_gang_is_given_back_and_asked_for_again_as_long_as_there_is_time(tmp_path: Path) -> None:
    run = run_on(tmp_path, near=SIZE - 1, far=SIZE)
    held = 0.0
    while run.state["at"] != FAR and run.seconds < DEADLINE:
        run.run_for(10.0)
        held += 10.0 * run.cluster.places().count(NEAR)
    paused = [each for each in run.state["decisions"] if "until" in each]
    assert "near gave 3 of 4 nodes, and no other within 5m (no zone has 4 spot" in paused[0]["reason"]
    assert paused[0]["reason"].endswith("they are released, and near is asked in 5 min")
    assert [each["until"] - (each["t"] or 0.0) for each in paused[:2]] == [5 * MINUTE, 10 * MINUTE]
    assert held <= 3 * (len(paused) + 1) * (5 * MINUTE + 20)
    assert sum(each.get("idle", 0.0) for each in run.state["decisions"]) == pytest.approx(held, rel=0.1)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= DEADLINE


@pytest.mark.parametrize("seed", [0, 9, 23])
def test_no_pause_without_nodes_goes_past_the_last_safe_moment(tmp_path: Path, seed: int) -> None:
    """Spot groups have parts of a gang, now and then a whole one; a start takes nearly as long as the spec says."""
    random = Random(seed)
    run = PlacedRun(tmp_path, {NEAR: SIZE, OTHER: 0, FAR: SIZE}, int(WORK), 100.0, **CAPACITY, lost_work="1m")
    while run.ended is None and run.seconds < DEADLINE:
        run.run_for(MINUTE * random.randint(1, 6))
        free = {name: random.choice([0, 1, 2, SIZE]) for name in (NEAR, OTHER)}
        if run.state["at"] != FAR and run.cluster.placed() and random.randrange(2):
            run.lose_a_node(**free)
        else:
            run.cluster.free |= free
    assert run.ended is not None and run.ended <= DEADLINE, run.state["decisions"]


@pytest.mark.parametrize("spare", [0.5, 1.0, 2.0, 4.0])
def test_a_part_of_a_gang_of_on_demand_nodes_is_asked_for_again_before_the_last_safe_moment(
    tmp_path: Path, spare: float
) -> None:
    """The on-demand group gives the missing node after the part was released: in time, unless a pause misses it."""
    deadline = WORK + 7 * MINUTE + spare * MINUTE  # a start takes 2 min at most, and the part waits for 5 min
    times = {"deadline": f"{deadline:g}s", "market": "on-demand"}
    run = PlacedRun(tmp_path, {FAR: SIZE - 1}, int(WORK), START, **{**CAPACITY, **times})
    run.run_until(lambda: "until" in run.state["decisions"][-1], 5 * MINUTE + 30)
    last = run.state["decisions"][-1]
    assert "until" in last and last["reason"].startswith("far gave 3 of 4 nodes"), last
    assert run.seconds + last["until"] - run.cluster.now <= deadline - WORK - 2 * MINUTE, "the last safe moment"
    run.cluster.free[FAR] = SIZE
    run.run_until(lambda: False, 2 * deadline)
    assert run.ended is not None and run.ended <= deadline


def test_a_part_of_a_gang_of_on_demand_nodes_is_kept_while_a_pause_would_miss_the_deadline(tmp_path: Path) -> None:
    deadline = WORK + 7 * MINUTE
    times = {"deadline": f"{deadline:g}s", "market": "on-demand"}
    run = PlacedRun(tmp_path, {FAR: SIZE - 1}, int(WORK), START, **{**CAPACITY, **times})
    run.run_for(5 * MINUTE + 40)
    assert run.cluster.placed() and not any("until" in each for each in run.state["decisions"])
    run.cluster.free[FAR] = SIZE
    run.run_until(lambda: False, 2 * deadline)
    assert run.ended is not None and run.ended <= deadline


def test_a_part_of_a_gang_is_not_given_back_then_for_a_spot_group_that_gave_none(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {NEAR: 0, FAR: SIZE - 1}, int(WORK), START, **{**CAPACITY, "deadline": "28m"})
    run.step = 5.0
    run.run_until(lambda: run.state["at"] == FAR, 5 * MINUTE)
    assert run.state["tried"] == [NEAR] and run.seconds == pytest.approx(4.5 * MINUTE, abs=30)
    run.run_for(3 * MINUTE + 15)
    assert run.state["tried"] == [NEAR, FAR] and len(run.cluster.placed()) == SIZE - 1, run.groups


def test_a_part_of_a_gang_of_on_demand_nodes_is_given_back_even_past_the_last_safe_moment(tmp_path: Path) -> None:
    run = run_on(tmp_path, near=0, far=SIZE - 1)
    run.run_for(DEADLINE - WORK)
    earlier = [each for each in run.state["decisions"] if "until" in each]
    # Before that moment it is asked again at the latest when it comes, and not the spot group that gave none.
    assert all(each["until"] - run.cluster.now + run.seconds <= DEADLINE - WORK - 2 * MINUTE for each in earlier)
    assert [each["group"] for each in earlier] == [FAR]
    run.run_until(lambda: run.cluster.suspended and "until" in run.state["decisions"][-1], 2 * DEADLINE)
    last = run.state["decisions"][-1]
    assert last["reason"].startswith("far gave 3 of 4 nodes") and 0 < last["idle"] <= 3 * (5 * MINUTE + 10)
    assert last["until"] == (last["t"] or 0.0) + 5 * MINUTE
    run.cluster.free[FAR] = SIZE
    run.run_until(lambda: False, 3 * DEADLINE)
    assert run.ended is not None


def test_each_decision_is_an_event_of_the_run_also_where_no_move_followed(tmp_path: Path) -> None:
    run = run_on(tmp_path, near=SIZE, far=SIZE)
    run.run_for(5 * MINUTE)
    run.lose_a_node(near=0)
    run.run_for(5 * MINUTE)
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.cluster.places() == [NEAR] * SIZE
    events = [json.loads(line) for line in (tmp_path / "x-1" / record.EVENTS).read_text().splitlines()]
    placed = [each for each in events if each["event"] == record.PLACED]
    assert [(each["group"], each["reason"].partition(":")[0]) for each in placed] == [
        (NEAR, "it is the cheapest"),
        (NEAR, "waits"),
    ]


def test_while_it_waits_it_asks_each_spot_group_in_turn(tmp_path: Path) -> None:
    run = run_on(tmp_path, near=0, other=0, far=SIZE)
    run.run_for(12 * MINUTE)
    assert run.groups[:4] == [NEAR, OTHER, OTHER, NEAR] or run.groups[:3] == [NEAR, OTHER, NEAR], run.groups
    run.cluster.free[OTHER] = SIZE
    run.run_until(lambda: run.cluster.places() == [OTHER] * SIZE, DEADLINE)
    assert run.cluster.places() == [OTHER] * SIZE


def test_nodes_that_work_are_not_given_back_for_cheaper_ones_that_may_not_come(tmp_path: Path) -> None:
    run = run_on(tmp_path, near=0, other=SIZE, far=SIZE)
    run.run_until(lambda: run.cluster.places() == [OTHER] * SIZE, DEADLINE)
    run.cluster.free[NEAR] = SIZE
    run.run_for(15 * MINUTE)
    assert run.cluster.places() == [OTHER] * SIZE


def test_the_pace_that_the_run_measures_decides_and_not_the_guess_of_the_spec(tmp_path: Path) -> None:
    slow = PlacedRun(tmp_path, {NEAR: SIZE, FAR: SIZE}, int(1.6 * WORK), START, **CAPACITY)
    slow.run_for(8 * MINUTE)
    slow.lose_a_node(near=0)
    slow.run_until(lambda: slow.state["at"] == FAR, DEADLINE)
    assert slow.seconds <= DEADLINE - (1.6 * WORK - slow.stored) - 2 * MINUTE
    slow.run_until(lambda: False, DEADLINE)
    assert slow.ended is not None


def test_a_start_that_took_longer_than_the_spec_says_moves_the_last_safe_moment(tmp_path: Path) -> None:
    deadline, start = 65 * MINUTE, 10 * MINUTE
    run = PlacedRun(tmp_path, {NEAR: SIZE, FAR: SIZE}, int(WORK), start, **{**CAPACITY, "deadline": "65m"})
    run.run_for(15 * MINUTE)
    run.lose_a_node(near=0)
    run.run_until(lambda: run.state["at"] == FAR, deadline)
    assert run.seconds + WORK - run.stored + start <= deadline
    run.run_until(lambda: False, deadline)
    assert run.ended is not None and run.cluster.places() == [FAR] * SIZE


def test_it_returns_from_on_demand_nodes_to_spot_nodes_where_that_pays(tmp_path: Path) -> None:
    capacity = {"deadline": "20h", "work": "10h", "overhead": "5m", "patience": "10m"}
    run = PlacedRun(tmp_path, {NEAR: 0, FAR: SIZE}, 36000, START, **capacity)
    run.step = 60.0
    run.run_until(lambda: run.cluster.places() == [FAR] * SIZE, 12 * 3600)
    assert run.cluster.places() == [FAR] * SIZE
    moved = run.seconds
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: run.cluster.places() == [NEAR] * SIZE, moved + 2 * 3600)
    assert run.cluster.places() == [NEAR] * SIZE
    run.run_until(lambda: False, 20 * 3600)
    assert run.ended is not None


LONG = {"deadline": "20h", "work": "10h", "overhead": "5m", "patience": "10m"}
HOUR = 3600.0


def on_demand_run(folder: Path) -> PlacedRun:
    """A run that has come to on-demand nodes, with hours to spare."""
    run = PlacedRun(folder, {NEAR: 0, FAR: SIZE}, 36000, START, **LONG)
    run.step = 60.0
    run.run_until(lambda: run.cluster.places() == [FAR] * SIZE, 12 * HOUR)
    return run


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param((NEAR, FAR), id="one"),
        pytest.param((NEAR, OTHER, FAR), id="two", marks=pytest.mark.extensive("asked again as one group is")),
    ],
)
def test_spot_groups_that_a_run_has_waited_for_are_asked_again_an_hour_after_the_wait(
    tmp_path: Path, groups: tuple[str, ...]
) -> None:
    """They were asked up to the last safe moment, and on-demand nodes were left for them as soon as these came."""
    free = {NEAR: 0, OTHER: 0, FAR: SIZE}
    times = {"deadline": "8h", "work": "3h", "overhead": "5m", "patience": "10m"}
    run = PlacedRun(tmp_path, {name: free[name] for name in groups}, int(3 * HOUR), START, **times)
    run.step = 30.0
    run.run_until(lambda: False, 8 * HOUR)
    assert run.ended is not None and run.ended <= 8 * HOUR
    moved = [each for each in run.state["decisions"] if each["t"]]
    first = next(number for number, each in enumerate(moved) if each["group"] == FAR)
    assert (moved[first + 1]["t"] or 0) - (moved[first]["t"] or 0) >= HOUR, [each["group"] for each in moved]


def test_a_spot_group_that_gives_no_nodes_is_asked_less_and_less_often(tmp_path: Path) -> None:
    run = on_demand_run(tmp_path)
    run.run_until(lambda: False, 20 * HOUR)
    assert run.ended is not None
    refused = [each["t"] for each in run.state["seen"] if each["group"] == NEAR]
    hours = [round((after - before) / HOUR) for before, after in itertools.pairwise(refused)]
    assert hours[1:] == [1, 2, 4], hours  # the first is the wait for spot nodes


@pytest.mark.parametrize("every", [None, 1800])
def test_a_run_gives_on_demand_nodes_back_only_where_the_work_that_it_repeats_is_paid_for(
    tmp_path: Path, every: int | None
) -> None:
    run = PlacedRun(tmp_path, {NEAR: 0, FAR: SIZE}, 36000, START, **LONG)
    run.step, run.every, run.at_notice = 60.0, every, False
    run.run_until(lambda: run.cluster.places() == [FAR] * SIZE, 12 * HOUR)
    moved = run.seconds
    run.run_until(lambda: run.seconds >= moved + HOUR, 20 * HOUR)
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: False, 20 * HOUR)
    assert run.ended is not None and run.ended <= 20 * HOUR, run.state["decisions"]
    assert run.cluster.places() == [NEAR if every else FAR] * SIZE


def test_where_the_policy_cannot_be_asked_the_last_safe_moment_alone_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'numpy'")

    monkeypatch.setattr(policy, "decide", fail)
    run = run_on(tmp_path, near=0, far=SIZE)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [NEAR, NEAR, FAR]
    reason = (
        "the policy cannot be asked (ModuleNotFoundError: No module named 'numpy'), so only the last safe moment is"
    )
    assert run.state["decisions"][1]["reason"].startswith(f"waits: {reason} kept")
    assert run.state["decisions"][2]["reason"].startswith("last safe moment: 20 min of work left")
    assert capsys.readouterr().err.count("ModuleNotFoundError") == 1


def test_an_api_server_whose_clock_is_behind_that_of_the_one_before_delays_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the newest decision for one of the future, and made none until that time."""
    run = run_on(tmp_path, near=SIZE, far=SIZE)
    run.run_for(10 * MINUTE)
    asked: list[float] = []
    decide = policy.decide

    def counted(*arguments: Any) -> Any:
        asked.append(run.seconds)
        return decide(*arguments)

    monkeypatch.setattr(policy, "decide", counted)
    run.cluster.now -= 5 * MINUTE
    run.look()
    assert asked == [5 * MINUTE]


@pytest.mark.parametrize("hidden", [(), ("numpy",)])
def test_the_archives_of_a_pod_have_all_that_the_controller_imports(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    for archive in (archives.agent_archive(), archives.policy_archive()):
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            unpack(packed, str(tmp_path))
    program = f"import sys; sys.modules.update(dict.fromkeys({hidden})); import spotmpi.capacity.controller"
    if not hidden:
        program += ", spotmpi.capacity.policy"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, check=False)
    assert done.returncode == 0


ELASTIC = {"nodes": [1, 2, SIZE], **CAPACITY}


def test_a_run_with_several_numbers_of_nodes_works_on_what_spot_groups_have_and_ends_in_time(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {NEAR: 2, FAR: SIZE}, int(WORK), START, **ELASTIC)
    run.step = 5.0
    run.run_for(12 * MINUTE)
    assert run.used == [0, 1] and run.groups[:1] == [NEAR] and run.state["at"] == NEAR
    run.run_until(lambda: run.state["at"] == FAR, DEADLINE)
    assert run.stored > 200, "two spot nodes have worked, half as fast, as long as there was time"
    left = WORK - run.stored
    assert run.seconds + left + 2 * MINUTE <= DEADLINE
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= DEADLINE and len(run.used) in (0, SIZE)
    assert run.state["decisions"][-1]["market"] == "on-demand"


def test_four_spot_nodes_that_become_one_go_on_while_there_is_time(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {NEAR: SIZE, FAR: SIZE}, int(WORK), START, **ELASTIC)
    run.run_for(10 * MINUTE)
    assert run.used == [0, 1, 2, 3]
    run.cluster.free[NEAR] = 1
    for number in (1, 2, 3):
        run.cluster.replace_a_pod(number)
    run.run_for(2 * MINUTE)
    assert run.used == [0] and run.groups == [NEAR]
    run.cluster.free[NEAR] = SIZE
    run.run_for(2 * MINUTE)
    assert run.used == [0, 1, 2, 3], "and grow again"
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= DEADLINE and run.groups == [NEAR]


@pytest.mark.parametrize("share", [0.8, 1.0, 3.0])
def test_what_fewer_nodes_tell_of_the_pace_misses_no_deadline(tmp_path: Path, share: float) -> None:
    """On fewer nodes it may be faster or slower than in proportion."""
    run = PlacedRun(tmp_path, {NEAR: 1, FAR: SIZE}, int(WORK), START, **ELASTIC)
    run.share = share
    run.run_for(15 * MINUTE)
    stored = run.stored
    assert stored > 60
    run.cluster.free[NEAR] = 0
    run.cluster.replace_a_pod(0)
    run.run_until(lambda: False, 2 * DEADLINE)
    assert run.ended is not None and run.ended <= DEADLINE
    waits = run.state["decisions"][1]["reason"]
    found = re.search(r"(\d+) min of work left", waits)
    assert found is not None and int(found[1]) * MINUTE >= WORK - stored, waits


@pytest.mark.extensive("a long search: the tests above are its parts")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_nodes_come_and_go_a_run_with_several_numbers_keeps_its_deadline(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = PlacedRun(tmp_path_factory.mktemp("run"), {NEAR: SIZE, OTHER: 0, FAR: SIZE}, int(WORK), START, **ELASTIC)
    run.mortal = data.draw(st.booleans())
    while run.ended is None and run.seconds < DEADLINE:
        on_spot = not run.cluster.suspended and run.state["at"] != FAR
        if on_spot and run.cluster.placed() and data.draw(st.integers(0, 2)) == 0:
            run.cluster.replace_a_pod(data.draw(st.sampled_from(run.cluster.placed())))
        run.cluster.free |= {name: data.draw(st.sampled_from([0, 1, 2, 3, SIZE])) for name in (NEAR, OTHER)}
        run.run_for(MINUTE * data.draw(st.integers(1, 8)))
        assert len(set(filter(None, run.cluster.places()))) <= 1
    assert run.ended is not None and run.ended <= DEADLINE, run.state["decisions"]


@pytest.mark.extensive("a long search: the tests above are its parts")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_spot_nodes_do_the_deadline_is_kept_and_no_gang_is_of_two_groups(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = run_on(tmp_path_factory.mktemp("run"), near=SIZE, other=0, far=SIZE)
    run.mortal = data.draw(st.booleans())
    while run.ended is None and run.seconds < DEADLINE:
        if data.draw(st.integers(0, 2)) == 0 and not run.cluster.suspended and run.state["at"] != FAR:
            run.lose_a_node()
        run.cluster.free |= {name: data.draw(st.sampled_from([0, 1, SIZE])) for name in (NEAR, OTHER)}
        run.run_for(MINUTE * data.draw(st.integers(1, 8)))
        assert len(set(filter(None, run.cluster.places()))) <= 1
    assert run.ended is not None and run.ended <= DEADLINE, run.state["decisions"]
