"""Every setting has a change that tests/engine makes to a built environment, and an outcome in docs/tests.md."""

from __future__ import annotations

import pytest

from tests.engine.setting_changes import STACKS, changes, documented, keys, pairs


@pytest.mark.parametrize("key", [key for key, _ in keys()])
def test_a_setting_is_changed_and_its_outcome_documented(key: str) -> None:
    assert key in {each.key for stack in STACKS for each in changes(stack)}
    assert documented(key)


def test_pairs_are_the_same_in_each_run() -> None:
    first, second = ([(stack, *map(str, both)) for stack, *both in pairs(20)] for _ in range(2))
    assert first == second and len(set(first)) == 20
