"""`./scripts/gangs`: what each way to ask for a gang's nodes pays, in small, with the product's decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from scripts import gangs
from scripts.gangs import STEP, Group, Groups, Outcome, Shortage, Times
from spotmpi.agent.placement_controller import Controller
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.source import from_values
from tests.unit.agent.placed_cluster import IDLE, START, PlacedCluster
from tests.unit.agent.test_placement import BACKOFF, target

pytestmark = pytest.mark.extensive("of a simulation for those who change how nodes are asked for")

HOUR = 3600.0
SHORTAGES = [*gangs.made_up(4, 1, 6, seed=1), *gangs.made_up(16, 3, 6, seed=2)]
RECORDED = [*gangs.recorded_shortages("16 H100 us-east4", 16, 3, seed=3)]


def found(way: str) -> list[Outcome]:
    return [gangs.WAYS[way](each, Times()) for each in [*SHORTAGES, *RECORDED]]


@pytest.mark.parametrize("way", gangs.WAYS)
def test_no_gang_starts_without_all_its_nodes_and_the_same_seed_gives_the_same_result(way: str) -> None:
    outcomes = found(way)
    assert outcomes == found(way)
    assert gangs.made_up(4, 1, 6, seed=1) == SHORTAGES[:6] != gangs.made_up(4, 1, 6, seed=2)
    started = [
        (each.start, shortage)
        for each, shortage in zip(outcomes, [*SHORTAGES, *RECORDED], strict=True)
        if each.start is not None
    ]
    assert len(started) > len(outcomes) / 2
    for start, shortage in started:
        whole = [zone for zone in range(len(shortage.nodes)) if shortage.offered(zone, start) >= shortage.size]
        assert whole and start >= Times().boot
    assert all(each.idle >= 0.0 and each.calls > 0 for each in outcomes)


def test_nodes_wait_no_longer_than_the_limit_and_cost_less_with_it_and_nothing_where_all_or_none_are_launched() -> None:
    without, limited, fleet = (found(way) for way in ("groups, no limit", gangs.LIMITED, "CreateFleet"))
    limit = gangs.capacity_of(1)["partial"]
    assert max(each.longest for each in limited) <= limit + STEP < max(each.longest for each in without)
    assert sum(each.idle for each in limited) < sum(each.idle for each in without) / 2
    lasting = Shortage(16, ((15,) * 60 + (16,),), 60.0)
    assert gangs.WAYS["CreateFleet"](lasting, Times()) == Outcome(HOUR + Times().boot, 0.0, 61)
    assert sum(each.idle for each in fleet) < sum(each.idle for each in limited) / 20, "lost before they were Ready"
    figures = gangs.compare({"groups": limited, "CreateFleet": fleet})
    assert figures["CreateFleet"]["later than the first"] == "0 min"


def test_nodes_that_are_released_cost_less_where_they_are_removed_before_the_run_asks_again() -> None:
    requests = [*SHORTAGES, *gangs.recorded_shortages("16 H100 us-central1", 16, 8, seed=4)]
    sooner, later = (
        [gangs.WAYS[gangs.LIMITED](each, Times(unneeded=seconds)) for each in requests]
        for seconds in (Times().unneeded, 300.0)
    )
    assert IDLE == Times().unneeded < gangs.capacity_of(1)["partial"], "the first pause"
    assert sum(each.idle for each in sooner) < 0.9 * sum(each.idle for each in later)


def test_without_a_limit_fifteen_nodes_are_paid_for_until_the_sixteenth_comes() -> None:
    lasting = Shortage(16, ((15,) * 60 + (16,),), 60.0)
    outcome = gangs.WAYS["groups, no limit"](lasting, Times())
    assert outcome.start is not None and outcome.start >= HOUR + Times().boot
    assert outcome.idle == pytest.approx(15 * (outcome.start - Times().boot), rel=0.05)
    assert outcome.longest == pytest.approx(outcome.start - Times().boot, rel=0.05)


def test_the_autoscaler_takes_what_failed_for_granted_and_asks_again_after_5_10_20_and_30_minutes() -> None:
    group, asked = Group(lambda _: 3, Times()), list[float]()
    for step in range(1, 720):
        before = group.calls
        group.step(step * STEP, 4)
        if group.calls == before + 1 and group._desired == 4:
            asked.append(step * STEP)
    pauses = [(later - earlier) / 60 for earlier, later in pairwise(asked)]
    assert len(group.nodes) == 3 and pauses[:4] == pytest.approx([5, 10, 20, 30], abs=1.5)


def test_the_simulated_decisions_are_those_of_the_controller_on_a_cluster() -> None:
    shortage = Shortage(4, ((3,) * 100 + (0,), (1,) * 100 + (4,)), 60.0)
    names = ("zone-0", "zone-1")
    targets = tuple(map(target, names))
    spec = from_values({"command": ["x"], "nodes": 4, "capacity": {"order": list(names)}})
    submission = Submission("x-1", "ann", {}, {}, {}, rates=dict.fromkeys(names, 1.0))
    jobset, config, *_ = kubernetes_plan(spec, replace(targets[0], order=targets), submission)
    plan: Any = {**json.loads(config["data"]["plan.json"]), "submitted": float(START)}
    cluster, groups = PlacedCluster(jobset, 4, {}), Groups(shortage, Times())
    api: Any = cluster
    while len(cluster.placed()) < 4:
        assert groups.now < 3 * HOUR, "two hours in the simulation"
        zone = None if cluster.suspended or not cluster.places() else names.index(cluster.state["at"])
        ready = groups.step(zone)
        cluster.free, cluster.refusals = {}, {}
        if zone is not None:
            cluster.free[names[zone]] = len(ready)
            cluster.refusals = {names[zone]: BACKOFF} if groups.now < groups.zones[zone].backoff_until else {}
        for _ in range(2):
            cluster.pass_time(STEP / 2)
            Controller(api, plan).look()
    outcome, state = gangs.controlled(shortage, Times(), gangs.capacity_of(2))

    def decisions(of: Any) -> list[tuple[str, bool, str]]:
        return [(each["group"], "until" in each, each["reason"].partition(" gave")[0]) for each in of["decisions"]]

    assert outcome.start == pytest.approx(groups.now, abs=60.0)
    assert decisions(cluster.state)[1:] == decisions(state)[1:] and len(decisions(state)) > 6
