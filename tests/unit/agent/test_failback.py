"""A run in an order of node groups that fell back to on-demand nodes, and goes back to spot nodes where that pays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from tests.unit.capacity.placed_run import FAR, NEAR, OTHER, SIZE, PlacedRun

pytestmark = pytest.mark.in_memory

HOUR = 3600.0
ORDER = {"order": [NEAR, FAR], "patience": "10m", "retry": "1h", "overhead": "5m"}


def fallen_back(folder: Path, hours: float = 10, stores: bool = True, **capacity: Any) -> PlacedRun:
    """A run of so many hours that is on on-demand nodes, since `NEAR` gave none, and *stores* checkpoints or none."""
    run = PlacedRun(folder, {NEAR: 0, FAR: SIZE}, int(hours * HOUR), 60.0, **{**ORDER, **capacity})
    run.step, run.at_notice, run.every = 60.0, stores, 60 if stores else None
    run.run_until(lambda: run.cluster.places() == [FAR] * SIZE, HOUR)
    assert run.cluster.places() == [FAR] * SIZE
    return run


def test_it_goes_back_at_a_checkpoint_once_the_spot_group_is_asked_again_and_says_what_that_saves(
    tmp_path: Path,
) -> None:
    run = fallen_back(tmp_path)
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: run.cluster.places() == [NEAR] * SIZE, 3 * HOUR)
    decision = run.state["decisions"][-1]
    refused = run.state["seen"][0]["t"]
    assert decision["group"] == NEAR and decision["t"] is not None and 0 <= decision["t"] - refused - HOUR <= 120
    assert decision["reason"].startswith(
        "back to spot nodes, at a checkpoint: $4.00 instead of $12.00 per hour saves $7"
    )
    run.run_until(lambda: False, 20 * HOUR)
    assert run.ended is not None and run.ended < 10.5 * HOUR  # nothing was repeated
    events = [json.loads(line) for line in (tmp_path / "x-1" / record.EVENTS).read_text().splitlines()]
    assert [each["group"] for each in events if each["event"] == record.PLACED] == [NEAR, FAR, NEAR]


HOSTILE = [
    ("metrics.jsonl", {"kind": "metric", "iteration": 7, "attempt": 1, "uptime": None}),
    ("metrics.jsonl", {"kind": "metric", "iteration": 7, "uptime": 5.0}),
    ("metrics.jsonl", {"kind": "metric", "iteration": 7, "attempt": {}, "uptime": 5.0}),
    ("attempts/7/node-0.json", {"cause": "end", "started": "now", "last_iteration": None}),
    ("attempts/7/node-0.json", {"cause": "end", "started": 1.0, "last_iteration": None, "world": {}}),
    ("attempts/7/world.json", {"members": 5}),
]


@pytest.mark.parametrize(("name", "values"), HOSTILE)
def test_what_the_program_writes_into_the_run_folder_does_not_end_the_controller(
    tmp_path: Path, name: str, values: dict[str, Any]
) -> None:
    run = fallen_back(tmp_path)
    path = tmp_path / "x-1" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")
    run.run_until(lambda: False, HOUR)
    assert len(run.cluster.places()) == SIZE


def test_a_group_that_gives_no_nodes_again_is_asked_after_twice_the_time(tmp_path: Path) -> None:
    run = fallen_back(tmp_path)
    run.run_until(lambda: False, 20 * HOUR)
    asked = [each["t"] for each in run.state["decisions"] if each["group"] == NEAR and each["t"]]
    refused = [each["t"] for each in run.state["seen"] if each["group"] == NEAR]
    waits = [again - before for before, again in zip(refused, asked, strict=False)]
    assert [round(each / HOUR) for each in waits] == [1, 2, 4]
    assert run.ended is not None and run.ended < 11.5 * HOUR


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"stores": False}, "has stored nothing"),
        ({"hours": 1.1}, "a start costs more than the rest"),
        ({"order": [FAR, NEAR]}, "the user prefers on-demand nodes"),
    ],
)
def test_it_stays_where_a_return_does_not_pay(tmp_path: Path, case: dict[str, Any], why: str) -> None:
    run = fallen_back(tmp_path, **case)
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: False, 20 * HOUR)
    assert run.ended is not None and run.groups[-1] == FAR, why


def test_spot_nodes_that_work_are_not_given_back_for_cheaper_ones(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {NEAR: 0, OTHER: SIZE}, 36000, 60.0, **{**ORDER, "order": [NEAR, OTHER]})
    run.step = 60.0
    run.run_for(HOUR)
    run.cluster.free[NEAR] = SIZE
    run.run_until(lambda: False, 20 * HOUR)
    assert run.groups == [NEAR, OTHER]
