"""Runs in Capacity Blocks on a cluster that a test scripts: they wait for the start, and leave before the end."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import placement
from spotmpi.agent.placement_controller import Controller
from spotmpi.agent.plan import Block
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.plan.placement import Beginning
from spotmpi.spec.source import from_values
from tests.unit.agent.placed_cluster import START, PlacedCluster
from tests.unit.agent.test_placement import PARTIAL, PATIENCE, RETRY, SIZE, groups_of, target

HOUR = 3600.0
GRACE = 90.0
LEAVE = 1800 + GRACE + 60  # seconds before the end of a block
FIRST, SECOND = "cr-00000001", "cr-00000002"
NO_OTHER = "no other node group is left: name one in capacity.order, and resume the run"


class BlockRun:
    """A run on groups of which some are in a Capacity Block, from and to so many hours after the submission."""

    def __init__(self, order: list[str], blocks: dict[str, tuple[float, float]], **free: int) -> None:
        capacity = {"order": order, "patience": f"{PATIENCE:g}s", "partial": f"{PARTIAL:g}s"}
        spec = from_values({"command": ["x"], "nodes": SIZE, "capacity": capacity})
        times = {name: (START + HOUR * start, START + HOUR * end) for name, (start, end) in blocks.items()}
        ids = dict(zip(blocks, (FIRST, SECOND), strict=False))
        known = {name: Block(reservation=ids[name], start=a, leave=b - LEAVE, end=b) for name, (a, b) in times.items()}
        targets = tuple(map(target, order))
        beginning = Beginning("the first", blocks=known)
        submission = Submission("x-1", "ann", {}, {}, {}, rates=dict.fromkeys(order, 1.0), beginning=beginning)
        objects = kubernetes_plan(spec, replace(targets[0], order=targets), submission)
        self.plan: Any = {**json.loads(objects[1]["data"]["plan.json"]), "submitted": float(START)}
        self.cluster = PlacedCluster(objects[0], SIZE, free)
        self.cluster.blocks = times
        self.step = 5.0  # seconds between looks

    @property
    def state(self) -> placement.State:
        return self.cluster.state

    @property
    def hours(self) -> float:
        return (self.cluster.now - START) / HOUR

    def run_until(self, hours: float) -> None:
        """Let time pass up to so many hours after the submission, with a new controller at each look."""
        while self.hours < hours:
            self.cluster.pass_time(self.step)
            api: Any = self.cluster
            Controller(api, self.plan).look()


def test_a_run_waits_for_the_start_of_its_block_and_asks_for_no_node_before() -> None:
    run = BlockRun(["block"], {"block": (1, 4)}, block=SIZE)
    run.run_until(0.99)
    assert run.cluster.suspended and not run.cluster.places() and not run.cluster.patches
    assert placement.waits_until(run.state) == START + HOUR
    run.run_until(1.02)
    assert run.cluster.places() == ["block"] * SIZE
    run.run_until(3)
    assert groups_of(run.state) == ["block"] and run.cluster.places() == ["block"] * SIZE


def test_a_block_that_has_started_before_the_submission_is_used_at_once() -> None:
    run = BlockRun(["block", "g5"], {"block": (-20, 4)}, block=SIZE, g5=SIZE)
    run.run_until(0.02)
    assert run.cluster.places() == ["block"] * SIZE


def test_a_run_leaves_its_block_for_the_next_group_before_ec2_ends_nodes() -> None:
    run = BlockRun(["block", "g5"], {"block": (0, 3)}, block=SIZE, g5=SIZE)
    run.run_until(3 - LEAVE / HOUR - 0.01)
    assert run.cluster.places() == ["block"] * SIZE and "ending" not in placement.with_placement(run.plan, run.state)
    run.run_until(3)
    assert run.cluster.places() == ["g5"] * SIZE and run.cluster.ended_by_ec2 == 0
    last = run.state["decisions"][-1]
    assert last["reason"] == f"the Capacity Block {FIRST} ends at 2026-11-18 14:06 UTC"
    assert START + 3 * HOUR - LEAVE <= (last["t"] or 0) < START + 3 * HOUR - LEAVE + 10
    run.run_until(5)
    assert groups_of(run.state) == ["block", "g5"]


def test_without_another_group_node_0_ends_the_run_in_time_and_the_controller_leaves_that_to_it() -> None:
    run = BlockRun(["block"], {"block": (0, 3)}, block=SIZE)
    run.run_until(3 - (LEAVE - 60) / HOUR)
    assert groups_of(run.state) == ["block"] and run.cluster.places() == ["block"] * SIZE
    assert placement.with_placement(run.plan, run.state)["ending"] == {
        "at": START + 3 * HOUR - LEAVE,
        "reason": f"the Capacity Block {FIRST} ends at {placement.utc(START + 3 * HOUR)}; {NO_OTHER}",
    }


@pytest.mark.parametrize("free", [0, SIZE - 1])
def test_a_run_that_got_no_nodes_from_its_block_asks_for_none_once_that_is_over(free: int) -> None:
    run = BlockRun(["block"], {"block": (0, 2)}, block=free)
    run.run_until(2 - LEAVE / HOUR + 0.01)
    last = run.state["decisions"][-1]
    assert run.cluster.suspended and last["reason"].endswith(NO_OTHER)
    assert last["until"] == (last["t"] or 0) + RETRY and run.cluster.ended_by_ec2 == 0
    run.run_until(5)
    assert not any(run.cluster.places())


def test_a_run_goes_on_in_its_next_block_and_waits_without_nodes_between_both() -> None:
    run = BlockRun(["one", "two"], {"one": (0, 3), "two": (4, 7)}, one=SIZE, two=SIZE)
    run.run_until(3.9)
    last = run.state["decisions"][-1]
    assert run.cluster.suspended and not run.cluster.places() and run.cluster.ended_by_ec2 == 0
    ends, starts = placement.utc(START + 3 * HOUR), placement.utc(START + 4 * HOUR)
    waits = f"waits for the Capacity Block {SECOND}, which starts at {starts}"
    assert last["reason"] == f"the Capacity Block {FIRST} ends at {ends}; {waits}"
    run.run_until(4.02)
    assert run.cluster.places() == ["two"] * SIZE and groups_of(run.state) == ["one", "two"]
    assert "ending" in placement.with_placement(run.plan, run.state)


def test_a_block_later_in_the_order_is_passed_over_before_its_start_and_after_its_end() -> None:
    run = BlockRun(["g5", "block", "g6"], {"block": (1, 3)}, block=SIZE)
    run.run_until(0.99)
    assert set(groups_of(run.state)) == {"g5", "g6"} and not run.cluster.suspended
    run.run_until(1.05)
    assert run.cluster.places() == ["block"] * SIZE
    run.run_until(5)
    assert run.state["decisions"][-1]["group"] != "block" and run.cluster.ended_by_ec2 == 0
    over = next(each for each in run.state["decisions"] if "ends at" in each["reason"])
    assert over["group"] == "g5"


@pytest.mark.parametrize("order", [["block", "g5"], ["block", "g5", "g6"], ["g5", "block", "g6"]])
def test_a_run_that_waits_goes_back_to_a_block_whose_node_returns(order: list[str]) -> None:
    """It waits in the last group, which never has a node, and asks the others again."""
    run = BlockRun(order, {"block": (0, 24)}, block=SIZE)
    run.step = 15.0
    run.run_until(0.5)
    run.cluster.free["block"] = SIZE - 1
    run.cluster.lose_a_node()
    run.run_until(1)
    assert run.state["at"] == order[-1] != "block"
    run.cluster.free["block"] = SIZE
    run.run_until(1.5 + (PATIENCE * len(order) + 60) / HOUR)
    assert run.cluster.places() == ["block"] * SIZE
    assert run.state["decisions"][-1]["reason"].endswith("; block is asked again")
    run.run_until(6)
    assert run.cluster.places() == ["block"] * SIZE


def test_a_part_of_a_gang_in_a_block_waits_for_the_rest_and_asks_the_others_again_later_and_later() -> None:
    run = BlockRun(["g5", "block"], {"block": (0, 24)}, block=SIZE - 1)
    run.step = 15.0
    run.run_until(5)
    moves = [each["t"] for each in run.state["decisions"] if each["group"] == "g5" and each["t"]]
    assert [round((later - before) / 60) for before, later in pairwise(moves)] == [4, 6, 10, 18, 34, 62, 62, 62]
    assert not any("until" in each for each in run.state["decisions"])
    assert run.cluster.places().count("block") == SIZE - 1, "that is where it waits"
    run.cluster.free["g5"] = SIZE
    run.run_until(6.2)
    assert run.cluster.places() == ["g5"] * SIZE


@pytest.mark.extensive("a long search: the tests above are its parts")
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_ec2_ends_no_node_of_a_run_and_no_gang_is_of_two_groups(data: st.DataObject) -> None:
    names = data.draw(st.permutations(["one", "two", "g5"]))
    order = names[: data.draw(st.integers(1, 3))]
    blocks = {}
    for name in sorted({"one", "two"} & set(order)):
        start = data.draw(st.sampled_from([-20.0, 0.0, 0.1, 0.5]))
        blocks[name] = (start, start + data.draw(st.sampled_from([0.6, 1.0, 24.0])))
    run = BlockRun(order, blocks)
    run.step = 15.0
    while run.hours < 1.5:
        run.cluster.free = {name: data.draw(st.sampled_from([0, 1, SIZE, SIZE])) for name in order}
        is_lost: bool = data.draw(st.booleans())
        if run.cluster.places() and is_lost:
            run.cluster.lose_a_node()
        until = run.hours + data.draw(st.sampled_from([0.02, 0.1, 0.4]))
        while run.hours < until:
            run.run_until(run.hours + 0.001)
            places = run.cluster.places()
            assert len(set(filter(None, places))) <= 1
            ending = placement.with_placement(run.plan, run.state).get("ending")
            if ending is not None and run.cluster.now > ending["at"] and places and None not in places:
                return  # node 0's agent has ended it
    assert run.cluster.ended_by_ec2 == 0
