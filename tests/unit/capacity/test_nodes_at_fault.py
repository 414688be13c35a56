"""Nodes that fail their check again: the controller of a run releases the gang that has them, and asks for others."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.attempt_history import avoided_machines
from tests.unit.capacity.placed_run import FAR, NEAR, OTHER, SIZE, PlacedRun

pytestmark = pytest.mark.in_memory

MINUTE = 60.0
WORK, DEADLINE, START = 20 * MINUTE, 50 * MINUTE, 60.0
BY_DEADLINE = {"deadline": "50m", "work": "20m", "overhead": "2m", "patience": "3m"}
BY_ORDER: dict[str, Any] = {"order": [NEAR, OTHER], "patience": "3m"}
SICK = f"{NEAR}.1.0"


def run_on(folder: Path, capacity: dict[str, Any], **free: int) -> PlacedRun:
    run = PlacedRun(folder, free, int(WORK), START, **capacity)
    run.sick = {SICK}
    return run


@pytest.mark.parametrize("mortal", [False, True])
@pytest.mark.parametrize("capacity", [BY_ORDER, BY_DEADLINE], ids=["order", "deadline"])
def test_a_gang_that_got_a_node_again_that_fails_its_check_goes_to_another_group(
    tmp_path: Path, capacity: dict[str, Any], mortal: bool
) -> None:
    run = run_on(tmp_path, capacity, near=SIZE, other=SIZE, far=SIZE)
    run.mortal = mortal
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= WORK + START + 3 * MINUTE
    assert run.checked == [SICK, SICK] and avoided_machines(str(tmp_path / "x-1")) == {SICK: "0 of 8 GPUs visible"}
    assert run.groups == [NEAR, OTHER] and run.state["decisions"][-1]["failed_again"] == 1
    assert run.state["decisions"][-1]["reason"].startswith(f"near gave 3 of 4 nodes, and {SICK} failed the check again")


def test_where_no_other_group_is_left_the_nodes_are_released_until_the_autoscaler_has_removed_the_one_at_fault(
    tmp_path: Path,
) -> None:
    run = run_on(tmp_path, BY_ORDER | {"partial": "5m"}, near=SIZE, other=0)
    run.run_until(lambda: False, 2 * DEADLINE)
    assert run.ended is not None and run.checked == [SICK] * 3, "it is there still when the other group gave none"
    assert SICK not in run.cluster.nodes() and f"{NEAR}.1.1" in run.cluster.nodes()
    assert any("until" in each for each in run.state["decisions"])


def test_on_demand_nodes_of_which_one_is_at_fault_are_left_for_those_that_come_after_it(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_DEADLINE | {"deadline": "90m"}, near=0, far=SIZE)
    run.sick = {f"{FAR}.1.0"}
    run.run_until(lambda: False, 90 * MINUTE)
    assert run.ended is not None and run.checked == [*run.sick] * 2
    reason = next(each["reason"] for each in run.state["decisions"] if each.get("failed_again"))
    assert reason.startswith("far gave 3 of 4 nodes, and far.1.0 failed the check again; asked next while waiting: ")


def test_a_node_that_fails_its_check_once_and_then_passes_it_is_kept(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_ORDER, near=SIZE, other=SIZE)
    run.run_until(lambda: bool(run.checked), DEADLINE)
    run.sick = set()
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [NEAR] and run.checked == [SICK]


def test_a_group_is_left_again_only_after_a_node_failed_again_there(tmp_path: Path) -> None:
    """The node is there still when the gang comes back, and passes its check."""
    run = run_on(tmp_path, BY_ORDER | {"retry": "5m"}, near=SIZE, other=SIZE)
    run.run_until(lambda: run.state["at"] == OTHER and len(run.cluster.placed()) == SIZE, DEADLINE)
    run.sick = set()
    run.lose_a_node(other=0)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [NEAR, OTHER, NEAR] and SICK in run.cluster.nodes()


def test_a_failed_check_in_the_submission_before_takes_no_node_from_this_one(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_ORDER, near=SIZE, other=SIZE)
    run.plan["submitted"] -= 3600.0
    run.run_until(lambda: len(run.checked) == 2, DEADLINE)
    resumed = PlacedRun(tmp_path, {NEAR: SIZE, OTHER: SIZE}, int(WORK), START, **BY_ORDER)
    resumed.run_until(lambda: False, DEADLINE)
    assert resumed.ended is not None and resumed.groups == [NEAR] and SICK in resumed.cluster.nodes()


@pytest.mark.parametrize("nodes", [[2, SIZE], [1, 2, SIZE]])
def test_a_run_that_has_enough_other_nodes_is_not_moved(tmp_path: Path, nodes: list[int]) -> None:
    run = run_on(tmp_path, BY_ORDER | {"nodes": nodes}, near=SIZE, other=SIZE)
    run.run_until(lambda: len(run.checked) >= 2, DEADLINE)
    run.run_for(MINUTE)
    assert [group for group, _ in itertools.groupby(run.groups)] == [NEAR]
