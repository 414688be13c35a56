"""A run that may have fewer nodes, in an order of groups: it begins on what came, and releases what it cannot use."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotmpi.agent import placement, record
from spotmpi.agent.attempt_history import AttemptHistory, was_moved
from spotmpi.agent.launch import largest_size, on_hosts
from spotmpi.agent.outcomes import INTERRUPTION, Outcome
from spotmpi.agent.placement_controller import Controller
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.progress import Progress
from spotmpi.agent.record import Record
from spotmpi.core.wording import duration
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.source import from_values
from tests.clocks import SetClock
from tests.unit.agent.placed_cluster import START, PlacedCluster
from tests.unit.agent.test_placement import ORDER, PARTIAL, PATIENCE, RATES, RETRY, target

pytestmark = pytest.mark.in_memory

SIZES = [2, 4, 8]
MOST = SIZES[-1]


class ElasticRun:
    """Such a run on a cluster: its node 0 chooses the nodes of each attempt as `ElasticCoordinator` does.

    The controller is killed after each look.
    """

    def __init__(self, folder: Path, order: tuple[str, ...] = ORDER, **free: int) -> None:
        capacity: dict[str, Any] = {"patience": f"{PATIENCE:g}s", "partial": f"{PARTIAL:g}s"}
        capacity |= {"order": list(order)} if len(order) > 1 else {}
        spec = from_values({"command": ["x"], "nodes": SIZES, "capacity": capacity})
        targets = tuple(replace(target(group), job_per_node=True, volume="claim") for group in order)
        jobset, *parts = kubernetes_plan(
            spec,
            replace(targets[0], order=targets),
            Submission("x-1", "ann", {}, {}, {}, rate=RATES["g5"], rates=RATES),
        )
        self.plan: Any = {**json.loads(parts[0]["data"]["plan.json"]), "submitted": float(START)}
        self.cluster = PlacedCluster(jobset, MOST, free)
        self.folder = folder / "x-1"
        self.folder.mkdir()
        self.used: list[int] = []  # pods that are the nodes of the present attempt
        self.sizes: list[int] = []  # nodes of each attempt
        self.grows = True  # once its program has written a checkpoint
        self._runs = folder
        self._enough_since: float | None = None
        self._history: AttemptHistory | None = None
        self._number = 0

    @property
    def state(self) -> placement.State:
        return self.cluster.state

    @property
    def decisions(self) -> list[placement.Decision]:
        return self.state["decisions"]

    def lose(self, *numbers: int, **free: int) -> None:
        """Lose the nodes of these pods, which get new pods; from now on so many are *free*."""
        self.cluster.free |= free
        for number in numbers:
            self.cluster.replace_a_pod(number)

    def run_for(self, seconds: float) -> None:
        until = self.cluster.now + seconds
        while self.cluster.now < until:
            self.step()

    def step(self) -> None:
        """Five seconds."""
        self.cluster.pass_time()
        self._attempt()
        api: Any = self.cluster
        Controller(api, self.plan, runs=str(self._runs)).look()

    def _attempt(self) -> None:
        here = self.cluster.placed()
        if self.used and not set(self.used) <= set(here):
            self._end()
        size = largest_size(self.plan["elastic"], len(here)) if 0 in here else None
        if self.grows and self.used and size is not None and size > len(self.used):
            self._end()
        self._enough_since = None if size is None else self._enough_since or self.cluster.now
        if self.used or size is None or self._enough_since is None:
            return
        if len(here) == MOST or self.sizes or self.cluster.now - self._enough_since >= PATIENCE:
            self._start(here[:size])

    def _start(self, pods: list[int]) -> None:
        clock = SetClock()
        self._history = AttemptHistory(Record(str(self.folder), clock), self.plan, self.plan["submitted"], clock)
        self._number = self._history.begin()
        plan = on_hosts(self.plan, [self.plan["hosts"][number] for number in pods])
        others = len(self.cluster.placed()) - len(pods)
        self._history.set_pods(plan, [Member(NODE, number) for number in pods], others)
        self._history.record_start(self._number, [])
        assert self._history.world is not None
        assert self._history.world.rate == RATES["g5"] * len(pods) / MOST, "no node that is released"
        assert self._history.world.standby == 0, "of which a report would say that they are a part of that"
        self.used = pods
        self.sizes.append(len(pods))

    def _end(self) -> None:
        assert self._history is not None
        self._history.end(self._number, Progress(0.0), Outcome(INTERRUPTION, "why"), 0.0)
        self._history.record.close()
        self.used = []


def test_it_begins_on_what_the_first_group_gave_after_the_patience_and_does_not_move(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=2, g6=MOST)
    run.run_for(10 * PATIENCE)
    assert run.cluster.places().count("g5") == 2 and not run.cluster.suspended
    assert run.used == [0, 1] and run.sizes == [2]
    assert [each["group"] for each in run.decisions] == ["g5"]


def test_it_goes_to_the_next_group_only_if_not_even_the_smallest_number_came(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=1, g6=4)
    run.run_for(PATIENCE + 40)
    assert run.cluster.placed() == [0, 1, 2, 3] and run.state["at"] == "g6"
    assert run.decisions[1]["reason"] == f"g5 gave 1 of 2 or 4 or 8 nodes within {duration(PATIENCE)}"
    run.run_for(2 * PATIENCE)
    assert run.sizes == [4]


@pytest.mark.extensive("a long search: test_placement has it for one number of nodes")
def test_nodes_that_are_too_few_for_the_next_number_are_given_back_and_asked_for_again_later_and_later(
    tmp_path: Path,
) -> None:
    run = ElasticRun(tmp_path, g5=3)
    run.run_for(PARTIAL - 10)
    assert run.used == [0, 1] and run.cluster.placed() == [0, 1, 2]
    run.run_for(30)
    assert run.used == [0, 1] == run.cluster.placed() and None not in run.cluster.places(), "no pod gets the node again"
    last = run.decisions[-1]
    assert last["reason"] == (
        "g5 gave 3 of 2 or 4 or 8 nodes, and no other within 90s: 1 is released, and asked for again in 1.5 min"
    )
    assert last["idle"] == pytest.approx(PARTIAL, abs=10)
    assert last["idle_dollars"] == pytest.approx(PARTIAL / 3600 * RATES["g5"] / MOST, abs=1e-4)

    idle = 0.0
    for _ in range(3600):
        run.step()
        idle += 5.0 * (len(run.cluster.placed()) - len(run.used))
    assert run.sizes == [2], "the attempt goes on meanwhile"
    times = [each["t"] or 0.0 for each in run.decisions[1:]]
    pauses = [following - each for each, following in pairwise(times)]
    assert pauses[0] == pytest.approx(2 * PARTIAL, abs=15) and max(pauses) == pytest.approx(RETRY + PARTIAL, abs=15)
    assert idle <= 12 * (PARTIAL + 15), "one minute and a half of each pause"

    run.cluster.free["g5"] = MOST
    run.run_for(RETRY + 15)
    assert run.sizes == [2, 8] and run.used == list(range(MOST))


def test_node_0_takes_the_node_of_another_pod_where_the_scheduler_gave_it_none(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=3)
    run.cluster.last_first = True
    run.run_for(10)
    assert run.cluster.placed() == [5, 6, 7]
    run.run_for(25)
    assert run.cluster.placed() == [0, 5, 6]
    assert run.decisions[-1]["reason"] == "node 0 gets the node of node 7: no attempt begins without node 0"
    assert len(run.cluster.places()) == MOST, "the others are asked for again"
    run.run_for(PATIENCE)
    assert run.used == [0, 5] and run.state["at"] == "g5"

    run.lose(0, g5=2)
    run.run_for(30)
    assert run.used == [0, 5] == run.cluster.placed() and run.state["at"] == "g5"


def test_a_node_0_that_gets_no_node_at_all_is_waited_for_no_longer_than_other_nodes(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=3, g6=4)
    run.cluster.last_first, run.cluster.may_scale = True, False  # so it cannot take one
    run.run_for(PATIENCE + 20)
    assert run.decisions[1]["group"] == "g6"
    assert run.decisions[1]["reason"] == "g5 gave 3 of 2 or 4 or 8 nodes, and none for node 0 within 1m"


def test_a_loss_shrinks_the_run_where_enough_nodes_are_left_and_moves_it_otherwise(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=4, g6=4)
    run.run_for(3600)  # the other four pods have waited for an hour
    run.lose(3, g5=3)
    run.run_for(10)
    assert run.sizes == [4, 2] and not run.cluster.suspended
    run.run_for(PARTIAL + 20)
    assert run.cluster.placed() == [0, 1], "what is left of four nodes is released as well"
    run.lose(1, g5=1)
    run.run_for(20)
    assert run.state["at"] == "g5" and len(run.cluster.places()) == MOST, "all are asked for at once"
    run.run_for(PATIENCE - 30)
    assert run.state["at"] == "g5", "the patience counts from the loss"
    run.run_for(PATIENCE + 60)
    assert run.state["at"] == "g6" and len(run.used) == 4


def test_a_move_asks_for_all_nodes_again(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=3, g6=MOST)
    run.run_for(PARTIAL + 30)
    assert run.cluster.placed() == [0, 1]
    run.lose(0, 1, g5=0)
    run.run_for(PATIENCE + 60)
    assert run.cluster.placed() == list(range(MOST)) and set(run.cluster.places()) == {"g6"}
    assert set(run.cluster.parallelism.values()) == {1}


def test_a_run_without_an_order_gives_back_what_it_does_not_use_too(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, order=("g5",), g5=7)
    run.run_for(PATIENCE + PARTIAL)
    assert run.cluster.placed() == [0, 1, 2, 3] == run.used
    run.lose(0, 1, 2, 3, g5=1)
    run.run_for(PARTIAL + 30)
    assert run.cluster.suspended, "one node of two is released as well, and the run waits without"


def test_nodes_that_the_run_cannot_go_on_with_without_a_checkpoint_are_given_back_too(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=2)
    run.grows = False
    run.run_for(PATIENCE + 20)
    run.cluster.free["g5"] = MOST
    run.run_for(PARTIAL + 30)
    assert run.used == [0, 1] == run.cluster.placed()
    assert run.decisions[-1]["reason"] == (
        "g5 gave 8 of 2 or 4 or 8 nodes, and no checkpoint was written at which the run could go on with them within "
        "90s: 6 are released, and asked for again in 1.5 min"
    )


def test_without_the_right_to_change_jobs_all_nodes_stay(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=3)
    run.cluster.may_scale = False
    run.run_for(3 * PARTIAL)
    assert run.cluster.placed() == [0, 1, 2] and len(run.decisions) == 1


def test_each_decision_is_in_the_run_folder_for_node_0_to_record(tmp_path: Path) -> None:
    run = ElasticRun(tmp_path, g5=3)
    run.run_for(PARTIAL + 30)
    clock = SetClock()
    history = AttemptHistory(Record(str(run.folder), clock), run.plan, run.plan["submitted"], clock)
    history.record_decisions(())
    history.record.close()
    events = [json.loads(line) for line in (run.folder / record.EVENTS).read_text().splitlines()]
    assert ["released" in each["reason"] for each in events if each["event"] == record.PLACED] == [False, True]


@pytest.mark.extensive("a long search: the tests above are its parts")
@pytest.mark.timeout(600)  # it computes all the time, and gets little of a busy machine
def test_in_thirty_shortages_no_node_is_paid_for_that_no_attempt_uses_longer_than_it_may(tmp_path: Path) -> None:
    longest, working = 0.0, 0.0
    for seed in range(30):
        random, folder = Random(seed), tmp_path / str(seed)
        folder.mkdir()
        run, idle_since = ElasticRun(folder), dict[int, float]()
        limit = dict.fromkeys(ORDER, 0)
        until = run.cluster.now + 1800
        while run.cluster.now < until:
            if random.random() < 0.02:
                limit = {name: random.choice([0, 1, 2, 3, 4, 6, 8]) for name in ORDER}
                if run.used and random.random() < 0.5:
                    run.lose(random.choice(run.used))
            for name in ORDER:
                run.cluster.free[name] = min(limit[name], run.cluster.free.get(name, 0) + random.choice([0, 1]))
            run.step()
            placed = run.cluster.placed()
            idle_since = {each: idle_since.get(each, run.cluster.now) for each in placed if each not in run.used}
            longest = max([longest, *(run.cluster.now - since for since in idle_since.values())])
            working += bool(run.used)
            assert len(set(filter(None, run.cluster.places()))) <= 1
    assert working > 600
    # Before the first attempt in a group its nodes wait for the patience, or else for the limit of partial gangs.
    assert PARTIAL <= longest <= PARTIAL + PATIENCE + 15, longest


@pytest.mark.parametrize(
    ("events", "moved"),
    [
        ([], False),
        (["placed g5", "started"], False),
        (["placed g5", "placed g6"], True),
        (["placed g5", "started", "placed g5"], False),
        (["placed g5", "started", "placed g6"], True),
        (["placed g5", "started", "placed g6", "started"], False),
    ],
)
def test_a_gang_that_was_moved_begins_anew(tmp_path: Path, events: list[str], moved: bool) -> None:
    values = [dict(zip(("event", "group"), each.split(), strict=False)) for each in events]
    (tmp_path / record.EVENTS).write_text("".join(json.dumps(each) + "\n" for each in values))
    assert was_moved(str(tmp_path)) == moved
