"""What the doctor is asked about in tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud.scripted_account import ScriptedAccount, SpotMarket
from tests.unit.environments.doctor.healthy_environment import HealthyEnvironment, create_healthy_environment
from tests.unit.environments.doctor.unbuilt import without_environment


@pytest.fixture
def market() -> SpotMarket:
    """What AWS offers."""
    return SpotMarket()


@pytest.fixture
def account(
    one_account: ScriptedAccount, market: SpotMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ScriptedAccount:
    """An account in which all is well and nothing is built, and a folder with the stack `mine`."""
    without_environment(one_account, market, tmp_path, monkeypatch)
    return one_account


@pytest.fixture
def healthy(one_account: ScriptedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HealthyEnvironment:
    """A live environment in which all is well."""
    return create_healthy_environment(one_account, tmp_path, monkeypatch)
