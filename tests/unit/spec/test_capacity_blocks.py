"""Runs that name a node group in a Capacity Block: their plans, and all that keeps them from using it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError
from spotmpi.spec.node_groups import choose
from spotmpi.spec.source import from_values
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import capacity_block
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.spec.test_node_groups import group

BLOCK = "cr-0123456789abcdef0"
START = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) + timedelta(days=1)
END = START + timedelta(days=2)
AT, UNTIL = f"{START:%Y-%m-%d %H:%M} UTC", f"{END:%Y-%m-%d %H:%M} UTC"
ALONE, ORDER = 'kubernetes.node_groups=["block"]', 'capacity.order=["block", "g5"]'


@pytest.fixture
def account(account: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """An account that has bought the Capacity Block, and knows no prices."""
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    monkeypatch.setattr("spotmpi.aws.prices.open_account", lambda region: account)
    account.ec2.reservations = [capacity_block(StartDate=START, EndDate=END)]
    return account


@pytest.fixture
def lab_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubeconfig: None, account: FakeAccount) -> Path:
    """The outputs of an environment whose first group is in the block."""
    monkeypatch.chdir(tmp_path)
    block = group("block", market="capacity-block", reservation=BLOCK, disk_gib=100)
    groups = [each.model_dump(mode="json") for each in (block, group("g5", type="g5.xlarge"))]
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({**OUTPUTS, "node_groups": groups}))
    return path


def planned(lab_file: Path, *overrides: str) -> Any:
    spec = {"command": ["true"], "launcher": "none", "nodes": 2, "kubernetes": {"image": "mine@sha256:1"}}
    return spotmpi.plan_run(spec, overrides, Target(str(lab_file)))


def problems(lab_file: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(lab_file, *overrides)
    return [str(each) for each in caught.value.problems]


def refusal(choice: Any) -> list[str]:
    assert isinstance(choice, list)
    return [str(each) for each in choice]


def agents(plan: Any) -> Any:
    return json.loads(plan["objects"][1]["data"]["plan.json"])


def state(plan: Any) -> Any:
    return json.loads(plan["objects"][0]["metadata"]["annotations"]["spotmpi.dev/placement"])


def test_a_block_is_used_only_where_a_run_names_it(lab_file: Path, account: FakeAccount) -> None:
    plan = planned(lab_file)
    assert agents(plan)["machine"]["node_group"] == "g5" and "capacity" not in agents(plan)
    named = planned(lab_file, 'capacity.order=["g5", "capacity-block"]')
    assert [each["name"] for each in agents(named)["capacity"]["placements"]] == ["g5", "block"]
    assert state(named)["moving"] is False


def test_a_run_in_a_block_waits_for_its_start_and_costs_the_disks_and_addresses_of_nodes(lab_file: Path) -> None:
    for names in (ALONE, ORDER):
        plan = planned(lab_file, names)
        (first, *_) = agents(plan)["capacity"]["placements"]
        assert first["block"] == {
            "reservation": BLOCK,
            "start": START.timestamp(),
            "leave": END.timestamp() - 1800 - agents(plan)["grace"] - 60,
            "end": END.timestamp(),
        }
        assert 0 < first["rate"] < 0.05 and first["machine"]["market"] == "capacity-block"
        assert state(plan)["moving"] is True and state(plan)["decisions"][0]["starts"] == START.timestamp()
        waits = f"waits for the Capacity Block {BLOCK}, which starts at {AT}"
        assert state(plan)["decisions"][0]["reason"] == f"the first in the order of its node groups; {waits}"
        assert any(each["metadata"]["name"].endswith("-placement") for each in plan["objects"])
        (note,) = [
            each for each in plan["notes"] if each.startswith(f"block: Capacity Block {BLOCK} from {AT} to {UNTIL}")
        ]
        assert "; the run leaves it at " in note
    assert plan["notes"][0].startswith("capacity: all 2 nodes from block (block.xlarge, capacity-block, $")


DEADLINE = ("capacity.deadline=60h", "capacity.work=20h", "capacity.market=spot")


def test_a_run_with_a_deadline_waits_for_a_block_that_it_names_where_that_has_time_for_its_work(lab_file: Path) -> None:
    both = 'kubernetes.node_groups=["g5", "block"]'
    plan = planned(lab_file, *DEADLINE, both)
    first, second = agents(plan)["capacity"]["placements"]
    assert (first["name"], second["name"]) == ("block", "g5") and first["block"]["reservation"] == BLOCK
    decision = state(plan)["decisions"][0]
    assert state(plan)["moving"] and decision["starts"] == START.timestamp()
    assert decision["reason"].endswith("is paid, and has time for the 20 h of work left")
    assert 0 < decision["forecast"]["dollars"] < 1 and decision["forecast"]["in_time"] == 1.0
    longer = planned(lab_file, *DEADLINE, both, "capacity.work=50h")
    assert state(longer)["decisions"][0]["group"] == "g5" and not state(longer)["moving"]
    assert 3 < state(longer)["decisions"][0]["forecast"]["dollars"] < 8, "of 50 h at $0.80, 46 h are the block's"
    assert "capacity" not in agents(planned(lab_file, *DEADLINE)), "it names no block, so one group is left"


def test_a_block_that_has_started_is_not_waited_for(lab_file: Path, account: FakeAccount) -> None:
    began = datetime.now(UTC) - timedelta(hours=5)
    account.ec2.reservations = [capacity_block(state="active", StartDate=began, EndDate=END)]
    assert state(planned(lab_file, ALONE))["decisions"][0]["reason"] == "the first in the order of its node groups"


def test_what_a_block_does_not_go_together_with_is_said_at_once(lab_file: Path) -> None:
    assert problems(lab_file, 'kubernetes.node_groups=["block", "g5"]', "kubernetes.queue=gpus") == [
        "kubernetes.node_groups = ['block', 'g5']: a run waits for the Capacity Block of block: name it alone, or all "
        "of them in capacity.order",
        "kubernetes.queue = 'gpus': Kueue would decide where the nodes come from as well: remove it, or "
        "kubernetes.node_groups",
    ]
    block = [group("block", market="capacity-block", reservation=BLOCK)]
    pool = from_values({"launcher": "pool", "pool": {"count": 2}, "kubernetes": {"node_groups": ["block"]}})
    of_node_0, of_workers = refusal(choose(pool, block))[0], refusal(choose(pool, block, gang=False))[0]
    assert "workers of a pool are not a gang" in of_node_0
    (alone,) = refusal(choose(from_values({"nodes": 2}), block))
    assert alone == ("kubernetes.node_groups: the environment has only Capacity Blocks, which a run has to name: block")
    assert "workers do not wait for the start of a Capacity Block" in of_workers
    assert problems(lab_file, ALONE, *DEADLINE) == [
        "capacity.market = 'spot': the run fits no spot group of the environment: add one to its stack (spotmpi:groups "
        "with `market`), or allow another market"
    ]


def test_a_block_that_is_over_unknown_or_unreadable_is_refused_with_the_remedy(
    lab_file: Path, account: FakeAccount
) -> None:
    over = datetime.now(UTC) + timedelta(minutes=20)
    remedy = "set the reservation of the next one in its stack and `spotmpi up`, or leave the group out"
    account.ec2.reservations = [capacity_block(state="active", StartDate=over - timedelta(days=1), EndDate=over)]
    assert problems(lab_file, ORDER) == [
        f"capacity.order = 'block': its Capacity Block {BLOCK} ends at {over:%Y-%m-%d %H:%M} UTC: {remedy}"
    ]
    account.ec2.reservations = [capacity_block(state="payment-failed")]
    (problem,) = problems(lab_file, ALONE)
    assert problem == f"kubernetes.node_groups = 'block': its Capacity Block {BLOCK} does not exist any more: {remedy}"
    account.refuse("DescribeCapacityReservations", "UnauthorizedOperation")
    (problem,) = problems(lab_file, ALONE)
    assert problem.startswith(
        "kubernetes.node_groups = 'block': the times of their Capacity Blocks are unknown: ec2:Desc"
    )


def test_with_credentials_of_another_account_no_block_is_said_to_be_gone(lab_file: Path, account: FakeAccount) -> None:
    account.sts.account = "999999999999"
    account.ec2.reservations = []
    (problem,) = problems(lab_file, ALONE)
    assert problem.startswith(
        "kubernetes.node_groups = 'block': the times of their Capacity Blocks are unknown: these credentials belong to "
        "account 999999999999, but this is cluster spotmpi-lab in us-east-1 of account"
    )


def test_an_environment_that_cannot_move_runs_is_to_be_built_anew(lab_file: Path) -> None:
    outputs = json.loads(lab_file.read_text())
    lab_file.write_text(json.dumps({**outputs, "placement_account": None}))
    (problem,) = problems(lab_file, ALONE)
    assert problem.endswith("has no service account that moves runs; `spotmpi up` adds it")
