"""The accounts and environments that the doctor's tests examine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud.account.fake_account import FakeAccount
from tests.unit.environments.doctor.healthy_environment import HealthyEnvironment, create_healthy_environment
from tests.unit.environments.doctor.unbuilt import without_environment


@pytest.fixture
def account(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """An account in which all is well and nothing is built, and a folder with the stack `mine`."""
    without_environment(tmp_path, monkeypatch)
    return account


@pytest.fixture
def healthy(account: FakeAccount) -> HealthyEnvironment:
    """A live environment in which all is well."""
    return create_healthy_environment(account)
