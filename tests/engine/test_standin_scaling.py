"""The sizes of the stand-in's node groups: what an autoscaler, the provider and the Auto Scaling API do to them."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_network import LAUNCH_TEMPLATE
from tests.engine.providers.records import Record, Refusal
from tests.engine.providers.scaling import autoscale, node_group, resize, scaling_group, sizes


def size(low: int, desired: int, high: int) -> dict[str, int]:
    return {"minSize": low, "desiredSize": desired, "maxSize": high}


@pytest.fixture
def group(eks: CloudBuilder) -> Record:
    """A node group of up to 8 nodes as the state has it, without any; an autoscaler has started 5 since."""
    group = eks.nodes(desired=0, size={"maxSize": 8})
    autoscale(eks.cloud, "work", 5)
    return group


@pytest.mark.parametrize(
    ("changes", "after", "terminated"),
    [
        pytest.param({"scalingConfig": size(0, 0, 16)}, (0, 0, 16), 5, id="other sizes"),
        pytest.param({"labels": {"a": "b"}}, (0, 5, 8), 0, id="other labels"),
    ],
)
def test_an_update_sends_sizes_only_where_they_change_and_the_desired_one_as_the_state_has_it(
    eks: CloudBuilder, group: Record, changes: dict[str, Any], after: tuple[int, int, int], terminated: int
) -> None:
    eks.change(group, **changes)
    assert sizes(node_group(eks.cloud, "work")) == after
    assert sum(nodes for _, nodes in eks.cloud.terminated) == terminated


def test_another_launch_template_replaces_all_nodes(eks: CloudBuilder, group: Record) -> None:
    template = eks.make(LAUNCH_TEMPLATE, name="other")
    eks.change(group, launchTemplate={"id": template.id, "version": "1"})
    assert eks.cloud.terminated == [(group.id, 5)]


@pytest.mark.parametrize(
    ("requested", "message"),
    [(size(2, 0, 8), "Minimum capacity 2 can't be greater than desired size 0"), (size(0, 9, 8), "desiredSize can't")],
)
def test_sizes_that_contradict_each_other_are_refused(
    eks: CloudBuilder, group: Record, requested: dict[str, int], message: str
) -> None:
    with pytest.raises(Refusal, match=message):
        eks.change(group, scalingConfig=requested)


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
    eks: CloudBuilder, group: Record, changes: dict[str, int], after: tuple[int, int, int], terminated: int
) -> None:
    resize(eks.cloud, scaling_group(group), changes)
    assert sizes(node_group(eks.cloud, "work")) == after
    assert sum(nodes for _, nodes in eks.cloud.terminated) == terminated


@pytest.mark.parametrize("changes", [{"MinSize": 9}, {"DesiredCapacity": 9}])
def test_a_scaling_group_refuses_bounds_that_cross(eks: CloudBuilder, group: Record, changes: dict[str, int]) -> None:
    with pytest.raises(Refusal, match="must be between"):
        resize(eks.cloud, scaling_group(group), changes)
