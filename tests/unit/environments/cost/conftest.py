"""The environment and the account of the worked example."""

from __future__ import annotations

import pytest

from spotmpi.core import environment
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.environments.cost.example import script


@pytest.fixture
def lab_environment() -> environment.Environment:
    """An environment with one group of spot nodes."""
    group = {**OUTPUTS["node_groups"][0], "name": "gpus", "type": "g5.xlarge", "market": "spot"}
    return environment.parse({**OUTPUTS, "region": "us-east-1", "zone": "us-east-1a", "node_groups": [group]})


@pytest.fixture
def account(account: FakeAccount, lab_environment: environment.Environment) -> FakeAccount:
    """An account with the example's machines and prices."""
    script(account, lab_environment)
    return account
