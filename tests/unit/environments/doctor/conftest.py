"""What the doctor is asked about in tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud.scripted_account import ScriptedAccount, World
from tests.unit.environments.doctor.healthy_environment import Here, all_well
from tests.unit.environments.doctor.unbuilt import nothing_built


@pytest.fixture
def world() -> World:
    """What AWS offers."""
    return World()


@pytest.fixture
def account(
    one_account: ScriptedAccount, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ScriptedAccount:
    """An account in which all is well and nothing is built, and a folder with the stack `mine`."""
    nothing_built(one_account, world, tmp_path, monkeypatch)
    return one_account


@pytest.fixture
def here(one_account: ScriptedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A live environment in which all is well."""
    return all_well(one_account, tmp_path, monkeypatch)
