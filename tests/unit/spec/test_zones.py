"""In which zone of an environment a run is: always in one, with the others as fallbacks, and only in allowed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import Problem
from spotmpi.spec import roles
from spotmpi.spec.node_groups import Choice
from spotmpi.spec.source import from_values
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.spec.test_node_groups import group

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"


def in_zones(name: str, zones: tuple[str, ...] = (A, B, C), **more: Any) -> list[NodeGroup]:
    """The groups of an environment with one group of the settings in several zones."""
    zonal = {zone: name if zone == A else f"{name}-{zone[-1]}" for zone in zones}
    kind = {"type": f"{name}.xlarge", **more}
    return [group(own, zone=zone, group=None if own == name else name, **kind) for zone, own in zonal.items()]


GROUPS = [*in_zones("g5"), *in_zones("g6", (A, B)), *in_zones("od", (A, C), type="g5.xlarge", market="on-demand")]


def choose(groups: list[NodeGroup] = GROUPS, **values: Any) -> Choice:
    choices = roles.choose(from_values({"command": ["true"], "nodes": 2, **values}), groups)
    assert not isinstance(choices, list), choices
    return choices[0]


def tried(groups: list[NodeGroup] = GROUPS, **values: Any) -> list[str]:
    """The groups of the gang, the first one and its fallbacks."""
    choice = choose(groups, **values)
    assert len(choice.groups) == 1
    return [each.name for each in choice.every_group]


def refused(groups: list[NodeGroup] = GROUPS, **values: Any) -> list[str]:
    problems = roles.choose(from_values({"command": ["true"], "nodes": 2, **values}), groups)
    assert isinstance(problems, list) and all(isinstance(each, Problem) for each in problems), problems
    return list(map(str, problems))


def test_a_run_takes_the_first_group_that_it_fits_in_any_of_its_zones() -> None:
    choice = choose()
    assert [each.name for each in choice.every_group] == ["g5", "g5-b", "g5-c"]
    assert choice.others == ("g6", "od")
    assert tried(kubernetes={"node_groups": ["g6"]}) == ["g6", "g6-b"]


def test_the_group_of_one_zone_is_named_with_the_letter_of_the_zone() -> None:
    assert tried(kubernetes={"node_groups": ["g5-b"]}) == ["g5-b"]
    assert tried(kubernetes={"node_groups": ["g5"]}, capacity={"zones": [A]}) == ["g5"]


@pytest.mark.parametrize(
    ("capacity", "names"),
    [
        ({"zones": [B]}, ["g5-b"]),
        ({"zones": [C, B]}, ["g5-b", "g5-c"]),
        ({"instance_types": ["g6.xlarge"]}, ["g6", "g6-b"]),
        ({"market": "on-demand"}, ["od", "od-c"]),
        ({"market": "on-demand", "zones": [C]}, ["od-c"]),
        ({"order": ["g5", "g6", "on-demand"]}, ["g5", "g5-b", "g5-c", "g6", "g6-b", "od", "od-c"]),
        ({"order": ["g5-c", "g5"]}, ["g5-c", "g5", "g5-b"]),
        ({"order": ["g6", "spot"], "zones": [B]}, ["g6-b", "g5-b"]),
        ({"order": ["spot", "od"], "instance_types": ["g5.xlarge"], "zones": [C]}, ["g5-c", "od-c"]),
    ],
)
def test_zones_types_and_market_of_a_spec_narrow_the_choice(capacity: dict[str, Any], names: list[str]) -> None:
    assert tried(capacity=capacity) == names


def test_a_deadline_may_use_each_zone_once_for_each_market_and_type() -> None:
    table = {"deadline": "30h", "work": "20h"}
    same = in_zones("slow", (A, B), type="g5.xlarge")
    assert tried([*GROUPS, *same], capacity=table) == ["g5", "g5-b", "g5-c", "g6", "g6-b", "od", "od-c"]
    assert tried(capacity={**table, "zones": [C]}) == ["g5-c", "od-c"]


@pytest.mark.parametrize("more", [{}, {"order": ["spot"]}, {"deadline": "30h", "work": "20h", "market": "spot"}])
def test_what_the_environment_has_not_is_refused_with_where_it_is(more: dict[str, Any]) -> None:
    assert refused(capacity={"zones": ["us-east-1f", B], "instance_types": ["p5.48xlarge"], **more}) == [
        "capacity.zones = 'us-east-1f': the environment has nodes in us-east-1a, us-east-1b, us-east-1c: use one of "
        "these, or add it to `zones` of its stack",
        "capacity.instance_types = 'p5.48xlarge': the environment has: g5.xlarge, g6.xlarge",
    ]
    assert refused(capacity={"zones": [C], "instance_types": ["g6.xlarge"], **more}) == [
        "capacity.instance_types = 'g6.xlarge': the environment has it in us-east-1a, us-east-1b alone, which "
        "capacity.zones leaves out: allow one of these zones"
    ]


def test_a_named_group_or_market_that_is_in_no_allowed_zone_is_refused() -> None:
    assert refused(kubernetes={"node_groups": ["g6"]}, capacity={"zones": [C]}) == [
        "kubernetes.node_groups = 'g6': the environment has it in us-east-1a, us-east-1b alone, which capacity.zones "
        "leaves out: allow one of these zones"
    ]
    assert refused(kubernetes={"node_groups": ["od"]}, capacity={"market": "spot"})[0].startswith(
        "capacity.market = 'spot': with other keys it leaves no node group of the environment, which has g5 (g5.xlarge"
    )
    (nothing,) = refused(GROUPS[5:], capacity={"zones": [C], "market": "spot"})
    assert nothing == (
        "capacity.zones = ['us-east-1c']: with other keys it leaves no node group of the environment, which "
        "has od (g5.xlarge, on-demand, in us-east-1a), od-c (g5.xlarge, on-demand, in us-east-1c): allow more"
    )
    assert refused(capacity={"zones": [C], "order": ["g5", "g6"]}) == [
        "capacity.order = 'g6': capacity.zones, instance_types and market leave none of its node groups: allow more, "
        "or remove it"
    ]


def test_with_a_queue_nothing_moves_a_run_so_it_has_one_zone() -> None:
    assert tried(kubernetes={"queue": "team"}) == ["g5"]


def test_a_run_that_fits_in_one_of_the_zones_alone_is_there() -> None:
    small, large = in_zones("g5", (A,), max=1), in_zones("g5", (B, C))
    assert tried([*small, *large]) == ["g5-b", "g5-c"]


def test_workers_are_in_the_zone_of_the_gang() -> None:
    cpus = in_zones("c6i", (B, C), gpus=0)
    for table in ({"zones": [C]}, {}):
        spec = from_values(
            {"command": ["true"], "nodes": 2, "slots": 1, "resources": {"gpu": 1}, "capacity": table}
            | {"stream": {"source": "s", "batch": 8, "workers": {"count": 2, "node_groups": ["c6i"]}}}
        )
        choice = roles.choose(spec, [*GROUPS, *cpus])
        assert isinstance(choice, tuple)
        zone = C if table else B
        assert [each.zone for each in (*choice[0].every_group, *choice[1].groups)] == [zone, zone]
        assert choice[0].spec.capacity == spec.capacity
    stream = {"source": "s", "batch": 8, "workers": {"count": 2}}
    (unknown,) = refused(stream=stream, capacity={"zones": ["us-east-1f"]})
    assert unknown.startswith("capacity.zones = 'us-east-1f': the environment has nodes in us-east-1a, us-east-1b")
    (problem,) = refused(
        [*in_zones("g5", (A,)), *cpus],
        resources={"gpu": 1},
        stream={**stream, "workers": {"count": 2, "node_groups": ["c6i"]}},
    )
    assert problem == (
        "nodes = 2: no zone has nodes for all of the run: us-east-1a for 2 nodes, us-east-1b for its workers: "
        "add a group to a zone of the stack"
    )


def test_a_pool_is_in_the_zone_where_node_0_is_on_demand() -> None:
    spec = from_values({"launcher": "pool", "pool": {"count": 4}})
    groups = [*in_zones("c6i", gpus=0), *in_zones("od", (C,), gpus=0, market="on-demand")]
    choice = roles.choose(spec, groups)
    assert isinstance(choice, tuple)
    assert [each.name for each in (*choice[0].every_group, *choice[1].groups)] == ["od-c", "c6i-c"]


@st.composite
def environments(draw: st.DrawFn) -> list[NodeGroup]:
    """Groups of the settings in some of three zones, of both markets and of different sizes."""
    kinds = st.tuples(st.sampled_from(["spot", "on-demand"]), st.integers(1, 4), st.sampled_from([0, 1]))
    zones = st.lists(st.sampled_from([A, B, C]), min_size=1, unique=True).map(sorted)
    return [
        each
        for number, (market, most, gpus) in enumerate(draw(st.lists(kinds, min_size=1, max_size=4)))
        for each in in_zones(f"g{number}", tuple(draw(zones)), market=market, max=most, gpus=gpus)
    ]


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Gangs with and without workers, and what they say of their nodes."""
    capacity: dict[str, Any] = {"zones": draw(st.lists(st.sampled_from([A, B, C]), unique=True, max_size=2))}
    if draw(st.booleans()):
        capacity["order"] = draw(st.lists(st.sampled_from(["g0", "g1-b", "spot"]), min_size=1, unique=True))
    values: dict[str, Any] = {"nodes": draw(st.integers(1, 4)), "capacity": capacity}
    if draw(st.booleans()):
        values["stream"] = {"source": "s", "batch": 8, "workers": {"count": draw(st.integers(1, 3))}}
    elif draw(st.booleans()):
        values["kubernetes"] = {"node_groups": draw(st.lists(st.sampled_from(["g0", "g1"]), unique=True))}
    return values


@settings(max_examples=100)
@given(specs(), environments())
def test_a_run_never_spans_zones(values: dict[str, Any], groups: list[NodeGroup]) -> None:
    spec = from_values({"command": ["true"], **values})
    choices = roles.choose(spec, groups)
    if isinstance(choices, list):
        assert choices
        return
    allowed = set(spec.capacity.zones) or {A, B, C}
    assert all(each.zone in allowed for choice in choices for each in choice.every_group)
    assert all(len({each.zone for each in choice.groups}) == 1 for choice in choices)
    if len(choices) > 1:
        assert len({each.zone for choice in choices for each in choice.every_group}) == 1
    assert all(each.max >= spec.nodes for each in choices[0].fallbacks)


@pytest.fixture
def three_zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs of an environment with three zones, where spot nodes cost most in the first."""
    groups = [*in_zones("g5"), *in_zones("stable", (A, B), type="g5.xlarge", market="on-demand")]
    prices = {"g5": 0.9, "g5-b": 0.4, "g5-c": 0.5, "stable": 1.0, "stable-b": 1.0}
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", lambda environment, groups: prices)
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({**OUTPUTS, "node_groups": [each.model_dump(mode="json") for each in groups]}))
    return path


def planned(three_zones: Path, *overrides: str) -> Any:
    spec = {"command": ["true"], "launcher": "none", "nodes": 2, "kubernetes": {"image": "mine@sha256:1"}}
    return spotmpi.plan_run(spec, overrides, Target(str(three_zones)))


def placements(plan: Any) -> list[tuple[str, str]]:
    """Node group and zone of each placement in the plan of the agents, in the order in which they are tried."""
    agents = json.loads(plan["objects"][1]["data"]["plan.json"])
    return [(each["name"], each["machine"]["zone"]) for each in agents["capacity"]["placements"]]


def test_a_plan_has_the_zones_that_are_tried_with_the_price_of_each(three_zones: Path) -> None:
    plan = planned(three_zones, "capacity.patience=5m")
    assert plan["notes"][0] == (
        "capacity: all 2 nodes from g5 (g5.xlarge, spot, in us-east-1a, $1.8 an hour), else from g5-b (g5.xlarge, "
        "spot, in us-east-1b, $0.8 an hour), else from g5-c (g5.xlarge, spot, in us-east-1c, $1 an hour); patience: "
        "5m, GPUs per slot: 1"
    )
    assert placements(plan) == [("g5", A), ("g5-b", B), ("g5-c", C)]
    pod = plan["objects"][0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["spotmpi.dev/group"] == "g5"


def test_a_run_that_may_have_fewer_nodes_goes_to_another_zone_only_from_where_too_few_came(three_zones: Path) -> None:
    plan = planned(three_zones, "nodes=[1, 2]", "capacity.patience=5m")
    assert placements(plan) == [("g5", A), ("g5-b", B), ("g5-c", C)]
    assert plan["notes"][0].startswith("capacity: all 2 nodes, or at least 1, from g5 (g5.xlarge, spot, in us-east-1a")
    agents = json.loads(plan["objects"][1]["data"]["plan.json"])
    assert agents["elastic"]["sizes"] == [1, 2]


def test_a_run_with_a_deadline_begins_in_the_cheapest_zone(three_zones: Path) -> None:
    plan = planned(three_zones, "capacity.deadline=30h", "capacity.work=20h")
    assert placements(plan)[0] == ("g5-b", B) and len(placements(plan)) == 5
    assert any(note.startswith("deadline: begins on g5-b: $0.80 per hour") for note in plan["notes"])
    only = planned(three_zones, "capacity.deadline=30h", "capacity.work=20h", 'capacity.zones=["us-east-1a"]')
    assert placements(only) == [("g5", A), ("stable", A)]


def test_a_price_of_a_group_is_that_of_all_its_zones_unless_one_has_its_own(three_zones: Path) -> None:
    given = "capacity.prices={g5=0.6, g5-c=0.3, stable=1}"
    plan = planned(three_zones, "capacity.deadline=30h", "capacity.work=20h", given)
    assert placements(plan)[0] == ("g5-c", C)
    assert "g5-b (g5.xlarge, spot, in us-east-1b, $1.2 an hour)" in plan["notes"][0]
