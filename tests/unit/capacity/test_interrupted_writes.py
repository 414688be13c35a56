"""Each write of a controller, of all that it does to a run, once killed, refused or without an answer.

The run is as undisturbed: the same decisions, once each in its record, the same pods, and an end at most a look later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spotmpi.agent import record
from spotmpi.agent.placement_controller import RequestFailed
from spotmpi.agent.schema import read_object
from tests.unit.capacity.placed_run import BLOCK, FAR, NEAR, OTHER, SIZE, Killed, PlacedRun

pytestmark = pytest.mark.in_memory

MINUTE, HOUR = 60.0, 3600.0
FAULTS = ("killed", "killed after it", "refused", "no answer after it")


class FaultyApi:
    """The `ClusterApi` of a controller of which write number *faulty* meets a *fault*."""

    def __init__(self, cluster: Any, faulty: int = -1, fault: str = "") -> None:
        self._cluster, self._faulty, self._fault = cluster, faulty, fault
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def patch(self, *arguments: Any) -> None:
        self._write(lambda: self._cluster.patch(*arguments))

    def scale(self, *arguments: Any) -> bool:
        try:
            return bool(self._write(lambda: self._cluster.scale(*arguments)))
        except RequestFailed:  # as in `ClusterApi`
            return False

    def _write(self, send: Callable[[], Any]) -> Any:
        self.writes += 1
        fault = self._fault if self.writes - 1 == self._faulty else ""
        answer = send() if not fault or fault.endswith("after it") else None
        if fault.startswith("killed"):
            raise Killed
        if fault.startswith("no answer"):
            raise OSError("timed out")
        if fault:
            raise RequestFailed("409 the object has been modified", 409)
        return answer


class Result(NamedTuple):
    decisions: list[tuple[str, str, bool]]
    recorded: list[str]
    pods: list[str]
    parallelism: dict[int, int]


def moved(folder: Path) -> Iterator[PlacedRun]:
    """It goes on to the next group, loses a node there, and goes back."""
    run = PlacedRun(folder, {NEAR: 0, OTHER: SIZE}, 20 * 60, MINUTE, order=[NEAR, OTHER], patience="3m", retry="5m")
    yield run
    run.run_for(12 * MINUTE)
    run.cluster.free[NEAR] = SIZE
    run.lose_a_node(other=0)


def given_back(folder: Path) -> Iterator[PlacedRun]:
    """Three of four nodes are given back, and asked for again."""
    yield (run := PlacedRun(folder, {NEAR: 3}, 20 * 60, MINUTE, order=[NEAR], patience="3m", partial="2m"))
    run.run_for(11 * MINUTE)
    run.cluster.free[NEAR] = SIZE


def shrunk(folder: Path) -> Iterator[PlacedRun]:
    """It works on two of three nodes, gives the third back, asks for it again, and grows."""
    capacity = {"order": [NEAR], "patience": "3m", "partial": "2m"}
    yield (run := PlacedRun(folder, {NEAR: 3}, 40 * 60, MINUTE, nodes=[1, 2, SIZE], **capacity))
    run.step = 20.0
    run.run_for(15 * MINUTE)
    run.cluster.free[NEAR] = SIZE


def on_demand(folder: Path) -> Iterator[PlacedRun]:
    """It falls back to on-demand nodes at the last safe moment, and returns to spot nodes."""
    capacity = {"deadline": "120m", "work": "60m", "overhead": "2m", "patience": "3m", "retry": "15m"}
    yield (run := PlacedRun(folder, {NEAR: 0, FAR: SIZE}, 60 * 60, MINUTE, **capacity))
    run.step = 30.0
    run.run_until(lambda: run.state["at"] == FAR, 2 * HOUR)
    run.cluster.free[NEAR] = SIZE


def in_a_block(folder: Path) -> Iterator[PlacedRun]:
    """It waits for its Capacity Block, and leaves it before its end."""
    capacity = {"order": [BLOCK, NEAR], "patience": "3m"}
    yield PlacedRun(folder, {BLOCK: SIZE, NEAR: SIZE}, 60 * 60, MINUTE, block=(10 * MINUTE, 72 * MINUTE), **capacity)


def at_fault(folder: Path) -> Iterator[PlacedRun]:
    """It leaves a node that fails its check again."""
    run = PlacedRun(folder, {NEAR: SIZE, OTHER: SIZE}, 20 * 60, MINUTE, order=[NEAR, OTHER], patience="3m")
    run.sick = {f"{NEAR}.1.0"}
    yield run


Story = Callable[[Path], Iterator[PlacedRun]]


def told(story: Story, folder: Path, faulty: int = -1, fault: str = "") -> tuple[Result, float, int]:
    """How a *story* ends, when, and after how many writes."""
    folder.mkdir()
    steps = story(folder)
    run = next(steps)
    run.api = api = FaultyApi(run.cluster, faulty, fault)
    next(steps, None)
    run.run_until(lambda: False, 3 * HOUR)
    assert run.ended is not None and not run.cluster.suspended, run.state
    decisions = [(each["group"], each["market"], "until" in each) for each in run.state["decisions"]]
    lines = map(read_object, (folder / "x-1" / record.EVENTS).read_text().splitlines())
    recorded = [each["group"] for each in lines if each["event"] == record.PLACED]
    return Result(decisions, recorded, run.cluster.nodes(), run.cluster.parallelism), run.ended, api.writes


LONG = pytest.mark.extensive("a longer story, whose writes are of the same kinds")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "story",
    [moved, *(pytest.param(each, marks=LONG) for each in (given_back, at_fault, shrunk, on_demand, in_a_block))],
)
def test_a_write_that_is_interrupted_is_made_once(tmp_path: Path, story: Story) -> None:
    expected, ended, writes = told(story, tmp_path / "undisturbed")
    assert writes
    for faulty in range(writes):
        for fault in FAULTS:
            result, later, _ = told(story, tmp_path / f"{faulty} {fault}", faulty, fault)
            assert result == expected, (faulty, fault)
            assert abs(later - ended) <= 1.5 * MINUTE, (faulty, fault)
