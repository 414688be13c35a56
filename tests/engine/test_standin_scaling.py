"""The sizes of the stand-in's node groups: what an autoscaler, the provider and the Auto Scaling API do to them."""

from typing import Any

import pytest

from tests.engine.providers.aws_network import LAUNCH_TEMPLATE, NODE_GROUP
from tests.engine.providers.cloud import Asked
from tests.engine.providers.records import Record, Refused
from tests.engine.providers.scaling import autoscale, node_group, resize, scaling_group, sizes
from tests.engine.world import World


def update(world: World, group: Record, **changes: Any) -> None:
    """Update a node group as the provider does: from what the state holds of it, with some inputs changed."""
    asked = Asked(NODE_GROUP, "work", group.urn)
    world.aws.update(asked, group.id, {**group.inputs, **changes}, group.outputs)


def size(low: int, desired: int, high: int) -> dict[str, int]:
    return {"minSize": low, "desiredSize": desired, "maxSize": high}


def test_new_sizes_are_sent_with_the_desired_size_of_the_state(world: World) -> None:
    held = world.nodes(world.ready(), desired=0, size={"maxSize": 8})
    autoscale(world.cloud, "work", 5)
    update(world, held, scalingConfig=size(0, 0, 16))
    assert sizes(node_group(world.cloud, "work")) == (0, 0, 16)
    assert world.cloud.terminated == [(held.id, 5)]


def test_an_update_of_something_else_sends_no_sizes(world: World) -> None:
    held = world.nodes(world.ready(), desired=0, size={"maxSize": 8})
    autoscale(world.cloud, "work", 5)
    update(world, held, labels={"a": "b"})
    assert sizes(node_group(world.cloud, "work")) == (0, 5, 8)
    assert world.cloud.terminated == []


def test_another_launch_template_replaces_all_nodes(world: World) -> None:
    held = world.nodes(world.ready(), desired=2)
    template = world.make(LAUNCH_TEMPLATE, name="other")
    update(world, held, launchTemplate={"id": template.id, "version": "1"})
    assert world.cloud.terminated == [(held.id, 2)]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(size(2, 0, 8), "Minimum capacity 2 can't be greater than desired size 0"), (size(0, 9, 8), "desiredSize can't")],
)
def test_sizes_that_contradict_each_other_are_refused(world: World, wanted: dict[str, int], message: str) -> None:
    held = world.nodes(world.ready(), desired=0, size={"maxSize": 8})
    with pytest.raises(Refused, match=message):
        update(world, held, scalingConfig=wanted)


@pytest.mark.parametrize(
    ("changes", "after", "ended"),
    [
        ({"MaxSize": 16}, (0, 5, 16), 0),
        ({"MinSize": 6}, (6, 6, 8), 0),
        ({"MaxSize": 3}, (0, 3, 3), 2),
        ({"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}, (0, 0, 0), 5),
    ],
)
def test_a_scaling_group_moves_its_desired_capacity_into_its_bounds(
    world: World, changes: dict[str, int], after: tuple[int, int, int], ended: int
) -> None:
    held = world.nodes(world.ready(), desired=5, size={"maxSize": 8})
    resize(world.cloud, scaling_group(held), changes)
    assert sizes(node_group(world.cloud, "work")) == after
    assert sum(nodes for _, nodes in world.cloud.terminated) == ended


@pytest.mark.parametrize("changes", [{"MinSize": 9}, {"DesiredCapacity": 9}])
def test_a_scaling_group_refuses_bounds_that_cross(world: World, changes: dict[str, int]) -> None:
    held = world.nodes(world.ready(), desired=5, size={"maxSize": 8})
    with pytest.raises(Refused, match="must be between"):
        resize(world.cloud, scaling_group(held), changes)
