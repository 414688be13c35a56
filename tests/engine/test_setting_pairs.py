"""Random pairs of changes of settings of the ready stacks, as test_setting_changes.py has them one at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.built_stack import BuiltStack
from tests.engine.setting_changes import STACKS, Change, pairs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
    pytest.mark.nightly("300 pairs; by day 20 changes one at a time"),
]
# By stack, so that each is built once.
PAIRS = sorted(pairs(300), key=lambda pair: STACKS.index(pair[0]))


@pytest.mark.parametrize(("stack", "first", "second"), PAIRS, ids=map(" ".join, (map(str, pair) for pair in PAIRS)))
def test_two_changes_lose_nothing_that_was_not_named(
    built: Callable[[str], BuiltStack], stack: str, first: Change, second: Change
) -> None:
    built(stack).outcome([first, second])
