"""Limits that end a run between two attempts: what its nodes cost, and a node that is lost again and again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spotmpi.agent import outcomes
from spotmpi.agent.schema import AttemptRecord

LOSSES = outcomes.MAX_LOSSES


def plan(cost: float | None) -> Any:
    return {"limits": {"cost": cost}, "grace": 60}


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        ([], 0),
        # An attempt counts from when its nodes were present, and at most ten minutes of the pause after it.
        ([{"allocated": 1000, "started": 1050, "ended": 1600}], 1000),
        ([{"allocated": 1000, "started": 1050, "ended": 1100}], 700),
        ([{"started": 1050, "ended": 1100}], 650),
        # One whose agent was lost without a record counts until the next one, or until now.
        ([{"started": 1000}], 1000),
        ([{"started": 1000}, {"allocated": 1300, "started": 1310, "ended": 1400}], 300 + 700),
        ([{"started": 1000}, {"started": 1200}, {"allocated": 1300, "started": 1310, "ended": 1400}], 300 + 700),
        # A pause of less than ten minutes counts in full.
        ([{"started": 1000, "ended": 1100}, {"started": 1500, "ended": 1950}], 1000),
        # Clocks of two machines that differ make no time negative.
        ([{"started": 1500, "ended": 1600}, {"allocated": 1400, "started": 1410, "ended": 1500}], 100 + 600),
        # What an agent has measured counts, whatever happened to its clock meanwhile.
        ([{"allocated": 1900, "started": 1905, "ended": 100, "elapsed": 300.0}], 300 + 600),
        ([{"allocated": 100, "started": 105, "ended": 1900, "elapsed": 300.0}], 300 + 100),
    ],
)
def test_the_time_for_which_nodes_were_held(attempts: list[AttemptRecord], seconds: float) -> None:
    assert sum(outcomes.node_seconds(attempts, now=2000)) == seconds


def test_the_remaining_money_pays_until_a_checkpoint_before_the_limit() -> None:
    # $6 at $2 an hour are 3 hours, of which 700 s are spent and 60 s are kept for the checkpoint.
    before: list[Any] = [{"allocated": 1000, "started": 1050, "ended": 1100, "world": {"rate": 2.0}}]
    assert outcomes.seconds_left(plan(6), 2.0, before, now=5000) == pytest.approx(3 * 3600 - 700 - 60)
    assert outcomes.seconds_left(plan(None), 2.0, before, now=5000) is None
    assert outcomes.seconds_left(plan(6), None, before, now=5000) is None


def test_each_attempt_costs_what_its_own_world_did() -> None:
    # An hour at $2, an hour at $8 until its agent was lost, and half an hour without a price; 10 min of pause are paid.
    attempts: list[Any] = [
        {"allocated": 0, "started": 0, "ended": 3000, "world": {"rate": 2.0}},
        {"started": 3600, "world": {"rate": 8.0}},
        {"started": 7200, "ended": 9000},
    ]
    assert outcomes.dollars(attempts, now=9000) == pytest.approx(10)
    assert outcomes.seconds_left(plan(12), 4.0, attempts, now=9000) == pytest.approx(1800 - 60)


def test_the_reason_of_a_spent_limit_names_money_rate_and_remedy() -> None:
    reason = "limits.cost ($2.5) is nearly spent at $36 an hour; raise it and resume the run"
    assert outcomes.cost_reason(plan(2.5), 36.0) == reason
    of_deadline: Any = {**plan(2.5), "capacity": {"deadline": {"budget": 2.5}}}
    assert outcomes.cost_reason(of_deadline, 36.0) == reason.replace("limits.cost", "capacity.budget")


def lost(*nodes: int, **values: Any) -> AttemptRecord:
    attempt = {"cause": "interruption", "lost_nodes": list(nodes), "last_iteration": None, **values}
    return cast(AttemptRecord, attempt)


BETWEEN = [lost(), lost(2), lost(cause="failure"), lost(lost_nodes=None)]


@pytest.mark.parametrize(
    ("attempts", "node"),
    [
        pytest.param([lost(1)] * (LOSSES - 1), None, id="not often enough"),
        pytest.param([lost(1)] * LOSSES, 1, id="too often"),
        pytest.param([lost(2, 1)] * LOSSES, 1, id="with another node"),
        pytest.param([lost(1), *BETWEEN] * LOSSES, 1, id="with other interruptions in between"),
        pytest.param([lost(node % 3) for node in range(3 * LOSSES - 3)], None, id="different nodes"),
        pytest.param([lost(1, elapsed=outcomes.AT_ONCE)] * LOSSES, 1, id="each after a while"),
        pytest.param([lost(1), *[lost(1, elapsed=0.4)] * 20, *[lost(1)] * (LOSSES - 2)], None, id="at once"),
    ],
)
def test_a_node_that_is_lost_too_often_is_named(attempts: list[AttemptRecord], node: int | None) -> None:
    assert outcomes.repeatedly_lost_node(attempts) == node


@pytest.mark.parametrize("key", ["last_iteration", "resumed_iteration", "checkpoint_iteration"])
def test_a_run_that_makes_progress_may_lose_a_node_any_number_of_times(key: str) -> None:
    assert outcomes.repeatedly_lost_node([lost(1, **{key: number}) for number in range(100)]) is None
    attempts = [*[lost(1)] * (LOSSES - 1), lost(1, **{key: 0})]
    assert outcomes.repeatedly_lost_node(attempts) is None, "iteration 0 is progress once"
    assert outcomes.repeatedly_lost_node([*attempts, *[lost(1, **{key: 0})] * (LOSSES - 1)]) == 1


def test_the_same_iterations_again_are_no_progress() -> None:
    first = lost(1, last_iteration=500, checkpoint_iteration=300)
    again = lost(1, last_iteration=490, resumed_iteration=300)
    assert outcomes.repeatedly_lost_node([first, *[again] * (LOSSES - 2)]) is None
    assert outcomes.repeatedly_lost_node([first, *[again] * (LOSSES - 1)]) == 1
    further = lost(1, last_iteration=501, resumed_iteration=300)
    assert outcomes.repeatedly_lost_node([first, *[again] * (LOSSES - 2), further, again]) is None


def test_the_reason_of_repeated_losses_names_the_node_and_what_to_look_at() -> None:
    reason = outcomes.loss_reason(3)
    assert reason.startswith(f"node 3 was lost {LOSSES} times without notice and the run made no progress: if its pod ")
    assert reason.endswith(
        "or job exceeded its memory (`kubectl describe pod` shows OOMKilled, `sacct` OUT_OF_MEMORY), raise "
        "resources.memory and resume the run"
    )
