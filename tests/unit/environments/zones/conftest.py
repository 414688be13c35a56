"""The account whose zones tests compare."""

from __future__ import annotations

import pytest

from tests.cloud.scripted_account import ScriptedAccount, World


@pytest.fixture
def world() -> World:
    """What AWS offers."""
    return World()


@pytest.fixture
def account(one_account: ScriptedAccount, world: World) -> ScriptedAccount:
    """An account that answers as *world* is."""
    world.script(one_account)
    return one_account
