"""The account whose zones tests compare."""

from __future__ import annotations

import pytest

from tests.cloud.scripted_account import ScriptedAccount, SpotMarket


@pytest.fixture
def market() -> SpotMarket:
    """What AWS offers."""
    return SpotMarket()


@pytest.fixture
def account(one_account: ScriptedAccount, market: SpotMarket) -> ScriptedAccount:
    """An account that answers as *world* is."""
    market.script(one_account)
    return one_account
