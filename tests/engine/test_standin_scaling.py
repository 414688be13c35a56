"""The sizes of the stand-in's node groups: what an autoscaler, the provider and the Auto Scaling API do to them."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_network import LAUNCH_TEMPLATE, NODE_GROUP
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.records import Record, Refusal
from tests.engine.providers.scaling import autoscale, node_group, resize, scaling_group, sizes


def update(cloud_builder: CloudBuilder, group: Record, **changes: Any) -> None:
    """Update a node group as the provider does: from what the state holds of it, with some inputs changed."""
    resource = ResourceRequest(NODE_GROUP, "work", group.urn)
    cloud_builder.aws.update(resource, group.id, {**group.inputs, **changes}, group.outputs)


def size(low: int, desired: int, high: int) -> dict[str, int]:
    return {"minSize": low, "desiredSize": desired, "maxSize": high}


def test_new_sizes_are_sent_with_the_desired_size_of_the_state(cloud_builder: CloudBuilder) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0, size={"maxSize": 8})
    autoscale(cloud_builder.cloud, "work", 5)
    update(cloud_builder, group, scalingConfig=size(0, 0, 16))
    assert sizes(node_group(cloud_builder.cloud, "work")) == (0, 0, 16)
    assert cloud_builder.cloud.terminated == [(group.id, 5)]


def test_an_update_of_something_else_sends_no_sizes(cloud_builder: CloudBuilder) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0, size={"maxSize": 8})
    autoscale(cloud_builder.cloud, "work", 5)
    update(cloud_builder, group, labels={"a": "b"})
    assert sizes(node_group(cloud_builder.cloud, "work")) == (0, 5, 8)
    assert cloud_builder.cloud.terminated == []


def test_another_launch_template_replaces_all_nodes(cloud_builder: CloudBuilder) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=2)
    template = cloud_builder.make(LAUNCH_TEMPLATE, name="other")
    update(cloud_builder, group, launchTemplate={"id": template.id, "version": "1"})
    assert cloud_builder.cloud.terminated == [(group.id, 2)]


@pytest.mark.parametrize(
    ("requested", "message"),
    [(size(2, 0, 8), "Minimum capacity 2 can't be greater than desired size 0"), (size(0, 9, 8), "desiredSize can't")],
)
def test_sizes_that_contradict_each_other_are_refused(
    cloud_builder: CloudBuilder, requested: dict[str, int], message: str
) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0, size={"maxSize": 8})
    with pytest.raises(Refusal, match=message):
        update(cloud_builder, group, scalingConfig=requested)


@pytest.mark.parametrize(
    ("changes", "after", "terminated"),
    [
        ({"MaxSize": 16}, (0, 5, 16), 0),
        ({"MinSize": 6}, (6, 6, 8), 0),
        ({"MaxSize": 3}, (0, 3, 3), 2),
        ({"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}, (0, 0, 0), 5),
    ],
)
def test_a_scaling_group_moves_its_desired_capacity_into_its_bounds(
    cloud_builder: CloudBuilder, changes: dict[str, int], after: tuple[int, int, int], terminated: int
) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=5, size={"maxSize": 8})
    resize(cloud_builder.cloud, scaling_group(group), changes)
    assert sizes(node_group(cloud_builder.cloud, "work")) == after
    assert sum(nodes for _, nodes in cloud_builder.cloud.terminated) == terminated


@pytest.mark.parametrize("changes", [{"MinSize": 9}, {"DesiredCapacity": 9}])
def test_a_scaling_group_refuses_bounds_that_cross(cloud_builder: CloudBuilder, changes: dict[str, int]) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=5, size={"maxSize": 8})
    with pytest.raises(Refusal, match="must be between"):
        resize(cloud_builder.cloud, scaling_group(group), changes)
