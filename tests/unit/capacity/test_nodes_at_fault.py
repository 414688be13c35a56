"""Nodes that are at fault again: the controller of a run that has them lets its gang have others."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.agent.attempt_history import avoided_machines
from tests.unit.capacity.placed_run import FAR, NEAR, OTHER, SIZE, PlacedRun

pytestmark = pytest.mark.in_memory

MINUTE = 60.0
WORK, DEADLINE, START = 20 * MINUTE, 50 * MINUTE, 60.0
# Less than the time after which the autoscaler replaces a node that nothing uses.
BY_DEADLINE = {"deadline": "50m", "work": "20m", "overhead": "2m", "patience": "2m"}
BY_ORDER: dict[str, Any] = {"order": [NEAR, OTHER], "patience": "2m"}
SICK = f"{NEAR}.1.0"


def run_on(folder: Path, capacity: dict[str, Any], **free: int) -> PlacedRun:
    run = PlacedRun(folder, free, int(WORK), START, **capacity)
    run.sick = {SICK}
    return run


@pytest.mark.parametrize("mortal", [False, True])
@pytest.mark.parametrize("capacity", [BY_ORDER, BY_DEADLINE], ids=["order", "deadline"])
def test_a_gang_that_got_a_node_again_that_fails_its_check_gets_another_of_the_same_group(
    tmp_path: Path, capacity: dict[str, Any], mortal: bool
) -> None:
    run = run_on(tmp_path, capacity, near=SIZE + 1, other=SIZE, far=SIZE)
    run.mortal = mortal
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= WORK + START + 3 * MINUTE
    assert run.checked == [SICK, SICK] and avoided_machines(str(tmp_path / "x-1")) == {SICK: "0 of 8 GPUs visible"}
    assert run.groups == [NEAR, NEAR] and SICK not in run.cluster.nodes()
    assert run.state["decisions"][-1]["reason"] == f"{SICK} is at fault again, and the run goes on without"


@pytest.mark.parametrize("capacity", [BY_ORDER, BY_DEADLINE], ids=["order", "deadline"])
def test_where_the_group_has_no_other_node_the_gang_goes_to_the_next_group(
    tmp_path: Path, capacity: dict[str, Any]
) -> None:
    run = run_on(tmp_path, capacity, near=SIZE, other=SIZE, far=SIZE)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.checked == [SICK, SICK] and run.groups == [NEAR, NEAR, OTHER]
    assert run.state["decisions"][-1]["reason"].startswith("near gave 3 of 4 nodes within 2m")


def test_where_no_group_has_others_the_run_waits_until_the_autoscaler_has_replaced_the_node_at_fault(
    tmp_path: Path,
) -> None:
    run = run_on(tmp_path, BY_ORDER | {"partial": "10m"}, near=SIZE, other=0)
    run.run_until(lambda: False, 2 * DEADLINE)
    assert run.ended is not None and run.checked == [SICK] * 2
    assert SICK not in run.cluster.nodes() and f"{NEAR}.1.1" in run.cluster.nodes()


def test_on_demand_nodes_of_which_one_is_at_fault_are_kept_but_for_that_one(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_DEADLINE | {"deadline": "90m"}, near=0, far=SIZE + 1)
    run.sick = {f"{FAR}.1.0"}
    run.run_until(lambda: False, 90 * MINUTE)
    assert run.ended is not None and run.checked == [*run.sick] * 2 and not run.sick & {*run.cluster.nodes()}
    assert run.groups[-2:] == [FAR, FAR]


def test_a_machine_on_which_the_program_failed_twice_is_excluded_at_once(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_ORDER, near=SIZE + 1, other=SIZE)
    run.sick = set()
    run.run_until(lambda: run.stored > 0, DEADLINE)
    run.fail_on(SICK)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.checked == [] and SICK not in run.cluster.nodes()
    assert run.groups == [NEAR, NEAR]


def test_without_the_right_to_change_pods_the_run_goes_on_as_without_a_controller(tmp_path: Path) -> None:
    """An environment that was built before has not given it."""
    run = run_on(tmp_path, BY_ORDER, near=SIZE + 1, other=SIZE)
    run.cluster.may_change_pods = False
    run.run_until(lambda: len(run.checked) > 3, DEADLINE)
    run.sick = set()
    run.run_until(lambda: False, 2 * DEADLINE)
    assert run.ended is not None and run.groups == [NEAR] and SICK in run.cluster.nodes()


def test_scheduling_gates_and_node_affinity_of_a_pod_template_stay(tmp_path: Path) -> None:
    places = {"key": "place", "operator": "In", "values": ["1", "2", "3", "4", "5"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [places]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    template = {"schedulingGates": [{"name": "ours/quota"}], "affinity": {"nodeAffinity": required}}
    run = run_on(tmp_path, {**BY_ORDER, "template": template}, near=SIZE + 3, other=SIZE)
    run.run_for(10 * MINUTE)
    assert run.groups == [NEAR], "a group that was asked for no node has not given too few"
    while len(run.groups) == 1:  # until it excludes a node, once that has failed its check twice
        run.cluster.open_gate("ours/quota")
        run.run_for(MINUTE)
    run.run_for(10 * MINUTE)
    run.cluster.replace_a_pod()
    run.run_for(MINUTE)
    assert run.groups == [NEAR, NEAR] and run.cluster.nodes() == [], "the gate is still there, also of a new Job"
    run.cluster.open_gate("ours/quota")
    run.run_until(lambda: False, 2 * DEADLINE)
    assert run.ended is not None and {*run.checked} == {SICK}
    assert SICK not in run.cluster.nodes() and f"{NEAR}.0.0" not in run.cluster.nodes()


def test_a_pod_that_is_deleted_before_it_is_changed_lets_no_other_in_on_the_machine_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_on(tmp_path, BY_ORDER, near=SIZE + 1, other=SIZE)
    change_pod = run.cluster.change_pod

    def change(name: str, patch: list[dict[str, Any]]) -> bool:
        is_gone = patch[0]["op"] == "test" and len(run.groups) == 2
        return not is_gone and change_pod(name, patch)

    monkeypatch.setattr(run.cluster, "change_pod", change)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.checked == [SICK, SICK] and SICK not in run.cluster.nodes()


@pytest.mark.parametrize("mortal", [False, True])
def test_while_the_run_folder_tells_nothing_no_pod_is_let_in(tmp_path: Path, mortal: bool) -> None:
    """Which machines are excluded is in the run folder: without an answer pods keep their gates."""
    run = run_on(tmp_path, BY_ORDER, near=SIZE + 1, other=SIZE)
    run.mortal = mortal
    run.run_until(lambda: len(run.groups) == 2, DEADLINE)
    events = tmp_path / "x-1" / record.EVENTS
    text = events.read_text()
    events.unlink()
    events.mkdir()  # to open it is an OSError, as that of a volume that does not answer
    run.run_for(2 * MINUTE)
    assert run.cluster.nodes() == []
    events.rmdir()
    events.write_text(text)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.checked == [SICK, SICK] and SICK not in run.cluster.nodes()


def test_a_node_that_fails_its_check_once_and_then_passes_it_is_kept(tmp_path: Path) -> None:
    run = run_on(tmp_path, BY_ORDER, near=SIZE, other=SIZE)
    run.run_until(lambda: bool(run.checked), DEADLINE)
    run.sick = set()
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [NEAR] and run.checked == [SICK]


@pytest.mark.parametrize("mortal", [False, True])
def test_it_stays_excluded_after_moves_and_lost_nodes(tmp_path: Path, mortal: bool) -> None:
    """The node would pass its check by then, and is there still."""
    run = run_on(tmp_path, BY_ORDER | {"retry": "5m"}, near=SIZE, other=SIZE)
    run.mortal = mortal
    run.run_until(lambda: run.state["at"] == OTHER and len(run.cluster.placed()) == SIZE, DEADLINE)
    run.sick = set()
    run.lose_a_node(other=0, near=SIZE + 1)
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.groups == [NEAR, NEAR, OTHER, NEAR] and SICK not in run.cluster.nodes()


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


def test_a_run_with_several_sizes_goes_on_without_a_machine_that_fails_each_check(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {NEAR: 2}, 600, 60.0, nodes=[1, SIZE], order=[NEAR], patience="1m")
    run.sick = {f"{NEAR}.1.0"}
    run.run_until(lambda: False, 3 * DEADLINE)
    assert run.ended is not None and avoided_machines(str(tmp_path / "x-1")).keys() == run.sick
