"""The account of the worked example."""

from __future__ import annotations

import pytest

from tests.cloud.account.fake_account import FakeAccount
from tests.unit.environments.cost.example import script


@pytest.fixture
def account(account: FakeAccount) -> FakeAccount:
    """An account with the example's machines and prices."""
    script(account)
    return account
