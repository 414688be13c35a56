"""The accounts and environments that the doctor's tests examine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cloud.account.eks import STANDARD
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.unit.environments.doctor.scenarios import HealthyEnvironment, write_stack


@pytest.fixture
def account(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """An account in which all is well and nothing is built, and a folder with the stack `mine`."""
    (tmp_path / "stacks").mkdir()
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    write_stack()
    account.eks.offered["1.36"] = (STANDARD, datetime.now(UTC) + timedelta(days=200))
    return account


@pytest.fixture
def healthy(account: FakeAccount, cluster: FakeCluster) -> HealthyEnvironment:
    """A live environment in which all is well."""
    return HealthyEnvironment(account, cluster)
