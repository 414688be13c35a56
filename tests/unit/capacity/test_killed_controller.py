"""Controllers that are killed between any two of their steps, two of them at once, and an API server that throttles.

A run goes on with the next controller: it ends in time, and is never on two groups or left suspended.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotmpi.agent.placement_controller import Controller, RequestFailed
from tests.unit.agent.placed_cluster import START as BEGAN
from tests.unit.capacity.placed_run import FAR, NEAR, OTHER, SIZE, Killed, PlacedRun

pytestmark = pytest.mark.in_memory

MINUTE, HOUR = 60.0, 3600.0
WORK, DEADLINE, START = 20 * MINUTE, 50 * MINUTE, 60.0
CAPACITY = {"deadline": "50m", "work": "20m", "overhead": "2m", "patience": "3m", "lost_work": "1m"}


class Faults:
    """The `ClusterApi` of a controller that is killed before or after a request, throttled, or overtaken by a *rival*.

    Each happens at about one of *every* so many requests.
    """

    def __init__(self, cluster: Any, random: Random, every: int) -> None:
        self._cluster, self._random, self._every = cluster, random, every
        self.rival: Controller | None = None
        self.happened: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cluster, name)
        return self._request(name, value) if callable(value) else value

    def _request(self, name: str, call: Any) -> Any:
        def request(*arguments: Any) -> Any:
            fault = self._random.choice(["before", "after", "throttled", "overtaken"])
            fault = fault if self._random.randrange(2 if name == "patch" else self._every) == 0 else ""
            self.happened.add(f"{fault} {name}")
            if fault == "overtaken" and self.rival is not None:
                with contextlib.suppress(RequestFailed):
                    self.rival.look()
            if fault == "throttled" and name not in ("events", "scale"):
                raise RequestFailed("429 too many requests", 429)
            if fault == "before":
                raise Killed
            answer = call(*arguments)
            if fault == "after":
                raise Killed
            return answer

        return request


MORE_SEEDS = pytest.mark.extensive("more moments of the same kind")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=MORE_SEEDS) for seed in range(2, 6))])
@pytest.mark.parametrize("nodes", [SIZE, [1, 2, SIZE]], ids=["one number", "several"])
def test_a_run_keeps_its_deadline_whenever_its_controllers_are_killed(
    tmp_path: Path, seed: int, nodes: int | list[int]
) -> None:
    random = Random(seed)
    run = PlacedRun(tmp_path, {NEAR: SIZE, OTHER: 0, FAR: SIZE}, int(WORK), START, nodes=nodes, **CAPACITY)
    run.api = faults = Faults(run.cluster, random, every=3)
    faults.rival = run.new_controller(run.cluster) if seed % 2 else None
    while run.ended is None and run.seconds < DEADLINE:
        run.run_for(MINUTE * random.randint(1, 6))
        assert len(set(filter(None, run.cluster.places()))) <= 1
        assert len(run.cluster.placed()) == len(set(run.cluster.placed()))
        on_spot = run.state["at"] != FAR and not run.cluster.suspended
        free = {name: random.choice([0, 1, 2, SIZE]) for name in (NEAR, OTHER)}
        if on_spot and run.cluster.placed() and random.randrange(2):
            run.lose_a_node(**free)
        else:
            run.cluster.free |= free
    assert run.ended is not None and run.ended <= DEADLINE, run.state["decisions"]
    assert any(not each.startswith(" ") for each in faults.happened)
    patches = len(run.cluster.patches)
    assert run.new_controller(run.cluster).look(), "a controller that is started after the end has nothing to do"
    assert len(run.cluster.patches) == patches


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("after", [False, True])
def test_a_move_is_made_once_at_whichever_request_the_controller_is_killed(
    tmp_path: Path, step: int, after: bool
) -> None:
    run = PlacedRun(tmp_path, {NEAR: 0, FAR: SIZE}, int(WORK), START, order=[NEAR, FAR], patience="3m")
    run.api = api = _KilledOnce(run.cluster, step, after)
    run.run_until(lambda: run.seconds >= 3 * MINUTE - 5, DEADLINE)
    api.armed = True
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and run.ended <= 3 * MINUTE + WORK + 2 * MINUTE
    assert api.killed and run.groups == [NEAR, FAR]
    suspended = [each["spec"]["suspend"] for each in run.cluster.patches]
    assert [value for value, _ in itertools.groupby(suspended)] == [True, False]
    assert run.cluster.places() == [FAR] * SIZE


@pytest.mark.parametrize("step", [pytest.param(step, marks=[MORE_SEEDS] if step % 3 else []) for step in range(12)])
@pytest.mark.parametrize("after", [False, True])
def test_a_machine_at_fault_is_excluded_once_at_whichever_request_the_controller_is_killed(
    tmp_path: Path, step: int, after: bool
) -> None:
    run = PlacedRun(tmp_path, {NEAR: SIZE + 1, FAR: SIZE}, int(WORK), START, order=[NEAR, FAR], patience="3m")
    run.sick = {f"{NEAR}.1.0"}
    run.api = api = _KilledOnce(run.cluster, step, after)
    run.run_until(lambda: len(run.checked) == 2, DEADLINE)
    api.armed = True
    run.run_until(lambda: False, DEADLINE)
    assert run.ended is not None and api.killed and run.groups == [NEAR, NEAR]
    assert not run.sick & {*run.cluster.nodes()} and len(run.cluster.placed()) == SIZE
    suspended = [each["spec"]["suspend"] for each in run.cluster.patches]
    assert [value for value, _ in itertools.groupby(suspended)] == [False, True, False]


class _KilledOnce:
    """The `ClusterApi` of a controller that is killed once, at the request of this number since it is *armed*."""

    def __init__(self, cluster: Any, step: int, after: bool) -> None:
        self._cluster, self._step, self._after = cluster, step, after
        self.armed = self.killed = False
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cluster, name)
        if not callable(value):
            return value

        def request(*arguments: Any) -> Any:
            number, self._count = self._count, self._count + self.armed
            is_last = self.armed and not self.killed and number == self._step
            self.killed = self.killed or is_last
            if is_last and not self._after:
                raise Killed
            answer = value(*arguments)
            if is_last:
                raise Killed
            return answer

        return request


def test_a_decision_that_the_api_server_did_not_take_is_made_again_at_the_next_look(tmp_path: Path) -> None:
    """On two of four nodes the time to the last safe moment gets less; the next decision would be ten minutes later."""
    capacity = {"deadline": "20h", "work": "10h", "overhead": "2m", "patience": "1m"}
    run = PlacedRun(tmp_path, {NEAR: 2, FAR: SIZE}, int(10 * HOUR), START, nodes=[2, SIZE], **capacity)
    run.step = 30.0
    api = _ThrottledMoves(run.cluster, times=2)
    run.api = api
    run.run_until(lambda: run.state["at"] == FAR, 20 * HOUR)
    assert len(api.refused) == 2 and run.seconds - api.refused[0] <= 3 * run.step
    run.run_until(lambda: False, 20 * HOUR)
    assert run.ended is not None


class _ThrottledMoves:
    """The `ClusterApi` of a controller whose first moves to other groups are throttled."""

    def __init__(self, cluster: Any, times: int) -> None:
        self._cluster, self._times = cluster, times
        self.refused: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def patch(self, run: str, patch: list[dict[str, Any]]) -> None:
        if any(each["path"] == "/spec/suspend" for each in patch) and len(self.refused) < self._times:
            self.refused.append(self._cluster.now - BEGAN)
            raise RequestFailed("429 too many requests", 429)
        self._cluster.patch(run, patch)
