"""Random pairs of changes of settings of the ready stacks, as test_setting_changes.py has them one at a time.

`--seed N` chooses others than those of each night.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.built_stack import BuiltStack
from tests.engine.setting_changes import Change, pairs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
    pytest.mark.nightly("300 pairs; by day 20 changes one at a time"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The pairs of the seed."""
    seed = metafunc.config.getoption("--seed")
    chosen = pairs(300) if seed is None else pairs(300, seed)
    metafunc.parametrize(("stack", "first", "second"), chosen, ids=[" ".join(map(str, pair)) for pair in chosen])


def test_two_changes_lose_nothing_that_was_not_named(
    built: Callable[[str], BuiltStack], stack: str, first: Change, second: Change
) -> None:
    built(stack).outcome([first, second])
