"""The cost in the advice on a stream whose spec has no price: that of a worker's share of its environment's nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import prices, runs
from spotmpi.core.names import RunPaths
from spotmpi.runs.reader import RunState
from spotmpi.streams.figures import Figures
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.core.test_environment import OUTPUTS

WAITING = Figures(2, 2, 100, 50, 50, 0, 16, 20.0, 5.0, ranks_wait=0.5, workers_wait=0.0)
ADVICE = "ranks wait 50 % for batches: 4 workers would do"
# Without disk and address, a node costs what its machine does.
LAB = {**OUTPUTS, "node_groups": [{**OUTPUTS["node_groups"][0], "disk_gib": 0, "public_address": False}]}
SPEC = 'command = ["train"]\n[stream]\nsource = "s3://set"\nbatch = 8\n[stream.workers]\ncount = 2\n'


@pytest.fixture
def account(account: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """An account in which a g4dn.xlarge of four vCPUs and 15,454 MiB costs 20 cents an hour."""
    account.ec2.spot_prices = {"g4dn.xlarge": 0.20}
    monkeypatch.setattr("spotmpi.aws.prices.open_account", lambda region: account)
    monkeypatch.setattr(prices, "_LIMIT", 60.0)  # on a busy machine
    return account


def advice(folder: Path, resources: str, figures: Figures = WAITING, **plan: Any) -> str | None:
    """The advice for a run of an environment whose workers have these *resources*."""
    paths = RunPaths(folder)
    paths.plan.write_text(json.dumps({"backend": "kubernetes", "outputs": LAB, **plan}))
    paths.spec.write_text(f"{SPEC}{resources}\n")
    state = runs._with_price(RunState(folder.name, str(folder), "run", "running", stream=figures.to_json()))
    assert state.stream
    text: str | None = state.stream["advice"]
    return text


@pytest.mark.parametrize(
    ("resources", "cost"), [("cpu = 1", "0.10"), ("cpu = 2", "0.20"), ('cpu = 1\nmemory = "7Gi"', "0.20")]
)
def test_a_worker_costs_its_share_of_a_node_now(
    account: FakeAccount, tmp_path: Path, resources: str, cost: str
) -> None:
    assert advice(tmp_path, resources) == f"{ADVICE}, ${cost}/h more"


def test_a_price_of_their_node_group_in_the_spec_is_that_of_workers(account: FakeAccount, tmp_path: Path) -> None:
    group = LAB["node_groups"][0]["name"]
    assert advice(tmp_path, f"cpu = 1\n[capacity.prices]\n{group} = 0.60") == f"{ADVICE}, $0.30/h more"


def test_without_an_answer_of_aws_or_an_environment_the_advice_has_no_cost(
    account: FakeAccount, tmp_path: Path
) -> None:
    assert advice(tmp_path, "cpu = 8") == ADVICE, "they fit no node"
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    for name, environment in (("refused", OUTPUTS), ("cluster", None)):
        (tmp_path / name).mkdir()
        assert advice(tmp_path / name, "cpu = 1", outputs=environment) == ADVICE


def test_aws_is_asked_once_for_a_run_and_only_where_the_advice_has_a_cost(account: FakeAccount, tmp_path: Path) -> None:
    content = Figures(2, 2, 100, 50, 50, 0, 16, 20.0, 5.0, ranks_wait=0.0, workers_wait=0.0)
    assert advice(tmp_path, "cpu = 1", content) is None
    assert not account.requests
    first, requests = advice(tmp_path, "cpu = 1"), len(account.requests)
    assert first == advice(tmp_path, "cpu = 1") == f"{ADVICE}, $0.10/h more"
    assert requests == len(account.requests) > 0
