"""The whole program, stack by stack."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.infra.mock_engine import run

STACKS = ["lab", "p3", "g5", "cpu", "p3-data", "g5-data"]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_is_built_without_look_ups(stack: str) -> None:
    assert run(stack).lookups == []


@pytest.mark.parametrize("stack", STACKS)
def test_every_resource_has_a_component_and_a_unique_name(stack: str) -> None:
    resources = run(stack).resources
    assert [urn for urn, count in Counter(one.urn for one in resources).items() if count > 1] == []
    at_the_root = {one.kind for one in resources if one.parent.split("::")[2] == "pulumi:pulumi:Stack"}
    loose = {kind for kind in at_the_root if not kind.startswith("spotmpi:")}
    assert loose <= {"pulumi:providers:aws", "pulumi:providers:kubernetes"}


@pytest.mark.parametrize("stack", STACKS)
def test_every_name_starts_with_the_environments(stack: str) -> None:
    assert [one.name for one in run(stack).resources if not one.name.startswith(f"spotmpi-{stack}")] == []


def test_two_runs_declare_the_same() -> None:
    first, second = run("g5"), run("g5", images=["chainermn", "pytorch"])
    assert {one.urn: one.inputs for one in first.resources} == {one.urn: one.inputs for one in second.resources}


def test_ten_groups_declare_ten_times_the_resources_of_one() -> None:
    groups = [{"name": f"g{index}", "type": "g4dn.xlarge", "max": 8} for index in range(10)]
    one = run("lab", groups=groups[:1])
    ten = run("lab", groups=groups)
    each = len(run("lab", groups=groups[:2]).resources) - len(one.resources)
    assert len(ten.resources) == len(one.resources) + 9 * each
