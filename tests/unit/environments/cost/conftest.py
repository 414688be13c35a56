"""The environment and the account of the worked example."""

from __future__ import annotations

import pytest

from spotmpi.core import environment
from tests.cloud.scripted_account import ScriptedAccount
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.environments.cost.example import script


@pytest.fixture
def lab() -> environment.Environment:
    """An environment with one group of spot nodes."""
    group = {**OUTPUTS["node_groups"][0], "name": "gpus", "type": "g5.xlarge", "market": "spot"}
    return environment.parse({**OUTPUTS, "region": "us-east-1", "zone": "us-east-1a", "node_groups": [group]})


@pytest.fixture
def account(one_account: ScriptedAccount, lab: environment.Environment) -> ScriptedAccount:
    """An account with the example's machines and prices."""
    script(one_account, lab)
    return one_account
