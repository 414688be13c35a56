"""The shapes of pods and their node groups: a pool's node 0 on demand where possible, workers wherever they fit."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import Problem
from spotmpi.spec import node_groups, roles
from spotmpi.spec.node_groups import Choice
from spotmpi.spec.source import from_values
from tests.unit.spec.test_node_groups import environments

TAINT = {"key": "spotmpi.dev/runs", "value": "only", "effect": "NoSchedule"}


def group(name: str, market: str, gpus: int = 0, vcpus: int = 8) -> NodeGroup:
    values: dict[str, Any] = {
        "name": name,
        "zone": "us-east-1a",
        "type": "c7i.2xlarge",
        "market": market,
        "gpus": gpus,
        "vcpus": vcpus,
    }
    sizes = {
        "memory_mib": 16384,
        "allocatable_mib": 15454,
        "disk_gib": 100,
        "disk_throughput": 125,
        "efa_interfaces": 0,
        "min": 0,
        "max": 4,
    }
    values |= {**sizes, "public_address": True, "placement_group": False}
    return NodeGroup.model_validate({**values, "labels": {"spotmpi.dev/group": name}, "taint": TAINT})


SPOT, STABLE, GPUS = group("spot", "spot"), group("stable", "on-demand"), group("gpus", "spot", gpus=4, vcpus=48)


def choose(*groups: NodeGroup, kubernetes: dict[str, Any] | None = None, **pool: Any) -> Any:
    values = {"launcher": "pool", "pool": {"count": 16, **pool}, "kubernetes": kubernetes or {}}
    choice = roles.choose(from_values(values), groups)
    if not isinstance(choice, tuple):
        return [str(problem) for problem in choice]
    gang, workers = choice
    return [each.name for each in gang.groups], [each.name for each in workers.groups], roles.driver_note(gang)


def test_node_0_takes_a_group_on_demand_and_workers_the_first_that_fits_unless_the_user_names_others() -> None:
    assert choose(SPOT, STABLE) == (["stable"], ["spot"], None)
    assert choose(STABLE, GPUS, gpu=1)[:2] == (["stable"], ["gpus"])  # of which workers need not take all GPUs
    named = choose(SPOT, STABLE, GPUS, kubernetes={"node_groups": ["spot"]}, node_groups=["gpus"], gpu=1)
    assert named[:2] == (["spot"], ["gpus"])


@settings(max_examples=60)
@given(environments(), st.integers(1, 8), st.integers(0, 2))
def test_each_shape_of_a_pool_gets_a_group_of_its_own_choice_and_node_0_one_on_demand_if_one_fits(
    groups: list[NodeGroup], workers: int, gpu: int
) -> None:
    spec = from_values({"launcher": "pool", "pool": {"count": workers, "gpu": gpu}})
    gang, own = (node_groups.choose(each, groups) for each in roles.role_specs(spec))
    stable = node_groups.choose(roles.gang_spec(spec), [each for each in groups if each.market == "on-demand"])
    choice = roles.choose(spec, groups)
    if isinstance(choice, tuple):
        assert choice == (stable if isinstance(stable, Choice) else gang, own)
    else:
        assert isinstance(gang, list) or isinstance(own, list)


def test_without_a_group_on_demand_a_note_tells_what_the_loss_of_node_0_costs() -> None:
    node_0, workers, note = choose(SPOT, GPUS)
    assert (node_0, workers) == (["spot"], ["spot"])
    assert "node 0 runs on spot nodes (spot): its loss loses the calls that have not ended" in note


def test_all_problems_of_both_shapes_come_at_once_and_name_their_fields() -> None:
    problems = choose(SPOT, kubernetes={"node_groups": ["nowhere"]}, gpu=8)
    assert len(problems) == 2
    assert problems[0].startswith("kubernetes.node_groups") and "nowhere" in problems[0]
    assert problems[1].startswith("pool.count = 16:") and "GPUs per node: 0, requested: 8" in problems[1]


def test_gang_and_workers_of_a_stream_take_node_groups_of_their_own() -> None:
    values: dict[str, Any] = {
        "command": ["train"],
        "nodes": 2,
        "slots": 4,
        "resources": {"gpu": 1},
        "kubernetes": {"node_groups": ["gpus"], "instance_type": "c7i.2xlarge", "exclusive": True},
        "stream": {"source": "s3://set", "batch": 8, "workers": {"count": 16, "cpu": 2, "memory": "4Gi"}},
    }
    choice = roles.choose(from_values(values), [SPOT, STABLE, GPUS])
    assert isinstance(choice, tuple) and roles.driver_note(choice[0]) is None
    assert [[group.name for group in each.groups] for each in choice] == [["gpus"], ["spot"]]
    gang, workers = roles.role_specs(from_values(values))
    assert (gang.world_size, workers.world_size) == (8, 16)
    assert (workers.resources.cpu, workers.resources.memory, workers.resources.gpu) == (2, "4Gi", 0)
    assert (workers.kubernetes.exclusive, workers.kubernetes.instance_type) == (False, None)


def test_each_stage_of_a_stream_has_its_own_resources_groups_and_image() -> None:
    stages = {"prepare": "flow:prepare", "postprocess": "flow:post", "workers": {"count": 3, "price": 0.2}}
    own = {"count": 2, "cpu": 4, "node_groups": ["stable"], "image": "registry/video:1"}
    stream = {"source": "s3://set", "batch": 8, **stages, "postprocess_workers": own}
    spec = from_values({"command": ["train"], "stream": stream, "price": 1, "kubernetes": {"node_groups": ["spot"]}})
    _, prepare, postprocess = roles.role_specs(spec)
    assert (prepare.nodes, prepare.price, prepare.kubernetes.image) == (3, 0.2, None)
    assert (postprocess.nodes, postprocess.price, postprocess.kubernetes.image) == (2, 1, "registry/video:1")
    choice = roles.choose(spec, [SPOT, STABLE])
    assert isinstance(choice, tuple)
    assert [[group.name for group in each.groups] for each in choice] == [["spot"], ["spot"], ["stable"]]
    (problem,) = roles.choose(spec, [SPOT])
    assert isinstance(problem, Problem) and problem.field == "stream.postprocess_workers.node_groups"


def test_problems_of_the_workers_of_a_stream_name_their_keys() -> None:
    for workers, field in (
        ({"cpu": 64, "node_groups": ["nowhere"]}, "stream.workers.node_groups"),
        ({"cpu": 64}, "stream.workers.count"),
    ):
        stream = {"source": "s3://set", "batch": 8, "workers": workers}
        spec = from_values({"command": ["train"], "stream": stream, "kubernetes": {"node_groups": ["spot"]}})
        problems = roles.choose(spec, [SPOT])
        assert isinstance(problems, list)
        assert [problem.field for problem in problems] == [field]
