"""The whole program, stack by stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.infra.conftest import Recording

    Run = Callable[..., Recording]

STACKS = ["lab", "p3", "g5", "cpu", "p3-data", "g5-data"]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_is_built_without_looking_anything_up(run: Run, stack: str) -> None:
    assert run(stack).lookups == []


@pytest.mark.parametrize("stack", STACKS)
def test_every_resource_belongs_to_a_component_and_has_a_name_of_its_own(run: Run, stack: str) -> None:
    made = run(stack).made
    assert [urn for urn, count in Counter(one.urn for one in made).items() if count > 1] == []
    at_the_root = {one.kind for one in made if one.parent.split("::")[2] == "pulumi:pulumi:Stack"}
    loose = {kind for kind in at_the_root if not kind.startswith("spotmpi:")}
    assert loose <= {"pulumi:providers:aws", "pulumi:providers:kubernetes"}


@pytest.mark.parametrize("stack", STACKS)
def test_every_name_carries_the_environments(run: Run, stack: str) -> None:
    assert [one.name for one in run(stack).made if not one.name.startswith(f"spotmpi-{stack}")] == []


def test_two_runs_ask_for_the_same(run: Run) -> None:
    first, second = run("g5"), run("g5", images=["chainermn", "pytorch"])
    assert {one.urn: one.inputs for one in first.made} == {one.urn: one.inputs for one in second.made}


def test_thirty_groups_make_thirty_times_what_one_makes(run: Run) -> None:
    groups = [{"name": f"g{index}", "type": "g4dn.xlarge", "max": 8} for index in range(30)]
    one = run("lab", groups=groups[:1])
    thirty = run("lab", groups=groups, cluster={"max_node_groups": 31})
    each = len(run("lab", groups=groups[:2]).made) - len(one.made)
    assert len(thirty.made) == len(one.made) + 29 * each
