"""Sizes of a node group: which bounds of its Auto Scaling group are set when the settings change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pytest

from infra.scaling_groups import ScalingGroup
from infra.sizes import Sizes, set_sizes


@dataclass(frozen=True)
class RecordingGroup(ScalingGroup):
    """An Auto Scaling group with these sizes that records its `updates`."""

    region: str = "us-east-1"
    group: str = "g4dn"
    sizes: tuple[int, int, int] = (0, 0, 8)
    updates: list[dict[str, int]] = field(default_factory=list)

    def describe(self, name: str) -> dict[str, Any]:
        return dict(zip(("MinSize", "DesiredCapacity", "MaxSize"), self.sizes, strict=True))

    def update(self, name: str, sizes: Mapping[str, int]) -> None:
        self.updates.append(dict(sizes))


@pytest.mark.parametrize(
    ("current", "old", "new", "updates"),
    [
        ((0, 5, 8), "0-8", Sizes(0, 16), [{"MaxSize": 16}]),
        ((0, 0, 8), "0-8", Sizes(2, 8), [{"MinSize": 2}]),
        ((4, 4, 8), "0-8", Sizes(0, 16), [{"MaxSize": 16}]),  # kept ready by `spotmpi scale`
        ((0, 3, 8), "0-8", Sizes(0, 4), [{"MaxSize": 4}]),
        ((0, 0, 8), None, Sizes(0, 8), []),  # a new group has its sizes
        ((0, 5, 8), None, Sizes(1, 12), [{"MinSize": 1, "MaxSize": 12}]),  # built by an earlier version
        ((0, 0, 0), "0-8", Sizes(2, 8), [{"MinSize": 2, "MaxSize": 8}]),  # closed
    ],
)
def test_only_bounds_that_changed_are_set_and_never_a_desired_size(
    current: tuple[int, int, int], old: str | None, new: Sizes, updates: list[dict[str, int]]
) -> None:
    group = RecordingGroup(sizes=current)
    set_sizes(group, "eks-g4dn", new, old)
    assert group.updates == updates


def test_a_maximum_below_the_running_nodes_is_refused() -> None:
    group = RecordingGroup(sizes=(0, 5, 8))
    with pytest.raises(
        pulumi.RunError, match="group g4dn has 5 running nodes, and the new max 4 would terminate 1 of them"
    ):
        set_sizes(group, "eks-g4dn", Sizes(0, 4), "0-8")
    assert group.updates == []
