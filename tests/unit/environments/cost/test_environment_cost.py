"""The cost of an environment's machines, compared with an example computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.billing import Lifetime, Usage, make_bill
from spotmpi.aws.prices import group_prices
from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG, lifetimes, scaling_groups
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.cost import environment_cost
from tests.cloud.account.answers import ACCOUNT
from tests.cloud.account.fake_account import FakeAccount
from tests.command_line import invoke
from tests.unit.environments.cost import example
from tests.unit.environments.cost.example import (
    BIG,
    CURVES,
    HOUR,
    LAB,
    LIVES,
    NOW,
    SMALL,
    T0,
    Colleagues,
    activity,
    record_run,
)

FAILED = {"StatusCode": "Failed"}


def test_the_worked_example_has_the_cost_computed_by_hand() -> None:
    bill = make_bill(LIVES, [*BIG, *SMALL], CURVES, since=T0 - HOUR, now=NOW)

    one, two = bill.machines
    assert (one.boot, one.idle, one.used) == pytest.approx((0.04, 0.76, 1.10))
    assert (two.boot, two.idle, two.used) == pytest.approx((0.04, 0.16, 0.60))
    big, small = bill.runs
    assert (big.hours, big.waiting, big.training) == pytest.approx((2.5 + 1.0, 0.08, 1.06 + 0.36))
    assert (small.hours, small.waiting, small.training) == pytest.approx((0.5, 0.0, 0.20))
    assert bill.dollars == pytest.approx(2.70)
    assert list(bill.by("owner")) == ["ann", "bob"] and bill.by("owner") == pytest.approx({"ann": 1.50, "bob": 0.20})
    assert sum(bill.by("team").values()) == pytest.approx(bill.total("used"))


def test_only_the_requested_time_counts_and_running_machines_count_until_now() -> None:
    living = [Lifetime(example.ONE, None, "gpus", example.KIND, T0, T0, None)]
    assert make_bill(living, [], CURVES, T0 + HOUR, T0 + 3 * HOUR).dollars == pytest.approx(1.5 * 0.4 + 0.5 * 0.6)
    assert make_bill(LIVES, [], CURVES, T0 + 5 * HOUR, T0 + 6 * HOUR).machines == ()
    running = [Usage("r", "ann", "none", example.ONE, T0, T0, None)]
    assert make_bill(living, running, CURVES, T0, T0 + HOUR).runs[0].training == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("minutes", "reclaimed", "dollars"),
    [(59, True, 0.0), (61, True, 61 / 60 * 0.4), (59, False, 59 / 60 * 0.4)],
    ids=["by EC2 in the first hour", "by EC2 later", "by its group"],
)
def test_an_instance_that_ec2_interrupts_in_its_first_hour_is_free_and_its_disk_is_not(
    minutes: float, reclaimed: bool, dollars: float
) -> None:
    """Amazon EC2 User Guide, Billing for interrupted Spot Instances."""
    end = T0 + minutes * 60
    life = Lifetime(example.ONE, None, "gpus", example.KIND, T0, T0, end, reclaimed=reclaimed, extras=0.06)
    use = Usage("r", "ann", "none", example.ONE, T0, T0, end)
    bill = make_bill([life], [use], CURVES, T0, NOW)
    assert bill.dollars == pytest.approx(dollars + minutes / 60 * 0.06)
    assert bill.runs[0].dollars == pytest.approx(bill.dollars) and bill.runs[0].hours == pytest.approx(minutes / 60)


@pytest.mark.parametrize(
    ("cause", "reclaimed"),
    [(example.INTERRUPTION, True), (example.REBALANCE, False), (example.UNHEALTHY, False), ("a user request", False)],
)
def test_only_an_interruption_by_ec2_counts_as_reclaimed(account: FakeAccount, cause: str, reclaimed: bool) -> None:
    example.script(account)
    account.autoscaling.activities["eks-gpus"][0] = activity("Terminating", example.ONE, 3.9, cause)
    one = lifetimes(account, LAB, scaling_groups(account, LAB))[0]
    assert (one.machine, one.reclaimed, one.ended) == (example.ONE, reclaimed, T0 + 4 * HOUR)


def test_a_machine_that_runs_for_longer_than_aws_keeps_activities_costs_something(account: FakeAccount) -> None:
    """Six weeks (Amazon EC2 Auto Scaling API Reference, DescribeScalingActivities): kept by `min`, or by a long run."""
    example.script(account)
    old = "i-00000000000000001"
    account.autoscaling.groups["eks-gpus"]["Instances"] = [{"InstanceId": each} for each in (old, example.ONE)]
    known = {"InstanceId": old, "LaunchTime": example.at(-1500), "PrivateDnsName": "ip-10-0-0-9.ec2.internal"}
    account.script("DescribeInstances", Reservations=[{"Instances": [known]}])
    first, *others = lifetimes(account, LAB, scaling_groups(account, LAB))
    began = T0 - 1500 * HOUR
    assert first == Lifetime(old, "ip-10-0-0-9.ec2.internal", "gpus", example.KIND, began, began, None)
    assert [each.machine for each in others] == [example.ONE, example.TWO]
    assert make_bill([first], [], CURVES, T0, T0 + HOUR).dollars == pytest.approx(0.40)


@pytest.mark.parametrize("termination", [{"EndTime": None, "StatusCode": "MidTerminatingLifecycleAction"}, FAILED])
def test_a_machine_is_billed_until_its_termination_ends(account: FakeAccount, termination: dict[str, Any]) -> None:
    """The node is drained before the instance ends; a termination that failed ends nothing."""
    example.script(account)
    account.autoscaling.activities["eks-gpus"][0] = activity("Terminating", example.ONE, 3.9, **termination)
    assert lifetimes(account, LAB, scaling_groups(account, LAB))[0].ended is None


def test_the_disk_and_the_address_of_a_node_are_part_of_its_cost(account: FakeAccount, tmp_path: Path) -> None:
    example.script(account)
    hour = 100 * 0.08 / 730 + 0.005
    fast = hour + (1000 - 125) * 0.04 / 730 + (4000 - 3000) * 0.005 / 730  # with the IOPS that AWS requires for it
    cases: list[tuple[dict[str, object], float]] = [({}, hour)]
    cases += [({"public_address": False}, hour - 0.005), ({"disk_gib": 0}, 0.005), ({"disk_throughput": 1000}, fast)]
    for values, extras in cases:
        group = {**LAB.node_groups[0].model_dump(), "disk_gib": 100, "public_address": True, **values}
        lab = environment.parse({**LAB.model_dump(), "node_groups": [group]})
        cost = environment_cost(lab, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)
        assert cost.dollars == pytest.approx(2.70 + 6 * extras)
        assert max(group_prices(lab, lab.node_groups, account).values()) == pytest.approx(0.60 + extras)


def test_an_environments_cost_comes_from_scaling_activities_and_run_records(
    account: FakeAccount, tmp_path: Path
) -> None:
    record_run(tmp_path, BIG)
    record_run(tmp_path, SMALL)

    cost = environment_cost(LAB, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)

    assert cost.bill == make_bill(LIVES, [*BIG, *SMALL], CURVES, T0 - HOUR, NOW)
    assert cost.billed == {example.EC2: pytest.approx(3.5), "EC2 - Other": 0.5}
    (query,) = account.requests_of("GetCostAndUsage")
    assert query["TimePeriod"] == {"Start": "2026-11-20", "End": "2026-11-21"}
    tag, *place = query["Filter"]["And"]
    assert tag == {"Tags": {"Key": "spotmpi:environment", "Values": [LAB.name]}}
    # Environments of that name in other regions, and in other accounts of a company, are on the same bill.
    assert place == [
        {"Dimensions": {"Key": "REGION", "Values": [LAB.region]}},
        {"Dimensions": {"Key": "LINKED_ACCOUNT", "Values": [ACCOUNT]}},
    ]


def test_the_bill_has_all_pages_of_cost_explorer(account: FakeAccount, tmp_path: Path) -> None:
    """boto3 knows no pages of GetCostAndUsage, which has some (NextPageToken in its API reference)."""

    def page(region: str, request: Any) -> dict[str, Any]:
        days = [{"Groups": example.bill_of_a_day({example.EC2: "1.0"})}]
        return {"ResultsByTime": days, **({} if "NextPageToken" in request else {"NextPageToken": "more"})}

    account.answers["GetCostAndUsage"] = page
    cost = environment_cost(LAB, T0, Target(runs_folder=tmp_path), account, NOW)
    assert cost.billed == {example.EC2: 2.0}


def test_node_groups_that_the_outputs_do_not_have_yet_are_named_and_the_others_counted(
    account: FakeAccount, tmp_path: Path
) -> None:
    """As in a file of outputs that was written before the environment grew to another zone."""
    account.autoscaling.add("eks-gpus-b", {CLUSTER_TAG: LAB.cluster, GROUP_TAG: "gpus-b"}, most=8)
    cost = environment_cost(LAB, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)
    assert cost.dollars == pytest.approx(2.70)
    assert cost.notes[1] == (
        "not included: gpus-b, which these outputs of the environment do not have; write their file again with "
        "`pulumi stack output --json`"
    )


UUID = "74c19ba3-0b1a-4c5d-8e6f-085e351a0123"
REMOVED = f"eks-spotmpi-lab-{{}}-1a2b3c4-{UUID}"


def remove_group(account: FakeAccount, name: str = "gpus") -> None:
    """Delete the group of the example's machines, whose activities AWS keeps."""
    account.autoscaling.activities[REMOVED.format(name)] = account.autoscaling.activities.pop("eks-gpus")
    del account.autoscaling.groups["eks-gpus"]


@pytest.mark.parametrize("part", ["gpus", "gpus-2"], ids=["", "more than 450 nodes"])
def test_the_machines_of_a_removed_node_group_count_as_a_run_has_recorded_the_group(
    account: FakeAccount, tmp_path: Path, part: str
) -> None:
    before = environment_cost(LAB, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)
    record_run(tmp_path, BIG, outputs=LAB.model_dump())
    record_run(tmp_path, SMALL)
    remove_group(account, part)
    account.autoscaling.activities[REMOVED.format("system")] = [activity("Launching", "i-0000000000000000c", 0)]
    later = Usage("later", "ann", "none", "i-0000000000000000d", NOW - HOUR, NOW - HOUR, NOW)
    record_run(tmp_path, [later], outputs=SUCCESSOR.model_dump())

    cost = environment_cost(SUCCESSOR, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)

    assert cost.dollars == pytest.approx(before.dollars) == pytest.approx(2.70)
    assert [(each.lifetime.machine, each.lifetime.kind) for each in cost.bill.machines] == [
        (example.ONE, example.KIND),
        (example.TWO, example.KIND),
    ]
    assert cost.bill.by("owner") == pytest.approx({"ann": 1.50, "bob": 0.20})
    assert not any("removed" in note for note in cost.notes)


LARGER = LAB.node_groups[0].model_copy(update={"type": "g5.12xlarge"})  # of the same name, and built afterwards
SUCCESSOR = LAB.model_copy(update={"node_groups": (LARGER,)})


def kinds_of_removed(account: FakeAccount, folder: Path) -> set[tuple[str, str, str]]:
    remove_group(account)
    cost = environment_cost(SUCCESSOR, T0 - HOUR, Target(runs_folder=folder), account, NOW)
    return {each.lifetime.kind for each in cost.bill.machines}


def test_the_type_of_a_removed_node_group_is_that_of_its_machines_whatever_a_clock_said(
    account: FakeAccount, tmp_path: Path
) -> None:
    """The run on its successor was recorded as submitted hours too early, while the removed group was still there."""
    record_run(tmp_path, BIG, outputs=LAB.model_dump())
    early = Usage("early", "ann", "none", "i-0000000000000000d", T0 + 2 * HOUR, T0 + 2 * HOUR, NOW)
    record_run(tmp_path, [early], outputs=SUCCESSOR.model_dump())
    assert kinds_of_removed(account, tmp_path) == {example.KIND}


def test_a_run_that_was_resumed_on_the_successor_of_a_removed_node_group_tells_nothing_about_that(
    account: FakeAccount, tmp_path: Path
) -> None:
    """Its plan is that of the second submission; it had no node before, of which its record would know the type."""
    later = Usage("later", "ann", "none", "i-0000000000000000d", T0 + HOUR, NOW - HOUR, NOW)
    record_run(tmp_path, [later], outputs=SUCCESSOR.model_dump())
    events = tmp_path / "later" / "events.jsonl"
    first, rest = events.read_text().split("\n", 1)
    events.write_text(f"{first}\n{json.dumps({'t': NOW - 2 * HOUR, 'event': 'submitted', 'continued': True})}\n{rest}")
    assert kinds_of_removed(account, tmp_path) == set()


def test_a_removed_node_group_whose_name_ends_with_a_number_is_no_part_of_another(
    account: FakeAccount, tmp_path: Path
) -> None:
    named = LAB.node_groups[0].model_copy(update={"name": "gpus-2"})
    other = LAB.node_groups[0].model_copy(update={"type": "g5.12xlarge"})
    record_run(tmp_path, BIG, outputs=LAB.model_copy(update={"node_groups": (named, other)}).model_dump())
    remove_group(account, "gpus-2")
    cost = environment_cost(LAB, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)
    assert {each.lifetime.kind for each in cost.bill.machines} == {example.KIND}


def test_machines_of_a_removed_node_group_whose_type_is_unknown_are_named(account: FakeAccount, tmp_path: Path) -> None:
    record_run(tmp_path, BIG, outputs={**LAB.model_dump(), "cluster_arn": "arn:aws:eks:us-east-1:1:cluster/other"})
    remove_group(account)
    cost = environment_cost(LAB, T0 - HOUR, Target(runs_folder=tmp_path), account, NOW)
    assert cost.dollars == 0
    assert cost.notes[1] == (
        "machines of node groups that were removed are not included where no run on this machine has recorded their "
        "type: gpus (2)"
    )
    later = environment_cost(LAB, T0 + 6 * HOUR, Target(runs_folder=tmp_path), account, NOW)
    assert not any("removed" in note for note in later.notes)


def test_a_machine_is_also_matched_by_its_node_name() -> None:
    uses = [Usage("old", "ann", "none", "ip-10-0-0-1.ec2.internal", T0 + HOUR, T0 + HOUR, T0 + 2 * HOUR)]
    bill = make_bill(LIVES, uses, CURVES, T0, NOW)
    assert bill.runs[0].dollars == pytest.approx(0.40) and bill.machines[1].used == 0


def test_without_the_right_to_read_the_bill_the_rest_is_reported(account: FakeAccount, tmp_path: Path) -> None:
    account.refuse("GetCostAndUsage", "AccessDeniedException")
    cost = environment_cost(LAB, T0, Target(runs_folder=tmp_path), account, NOW)
    assert cost.billed is None and cost.dollars == pytest.approx(2.70)
    assert "no AWS bill to compare with: ce:GetCostAndUsage in us-east-1 is not permitted" in cost.notes[-1]


def test_another_users_run_is_no_idle_time_and_nodes_without_a_run_are(
    account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path, BIG)
    monkeypatch.setattr(targets, "backend", lambda target: Colleagues(tmp_path))

    cost = environment_cost(LAB, T0 - HOUR, Target("lab", tmp_path), account, NOW)

    assert cost.bill.by("owner") == pytest.approx({"ann": 1.50, "bob": 0.20})
    assert cost.bill.total("idle") == pytest.approx(0.92)
    assert not any("count as idle" in note for note in cost.notes)

    longer = environment_cost(LAB, T0 - 20 * HOUR, Target("lab", tmp_path), account, NOW)
    assert "other users' runs that ended more than a day ago, and were not listed here by then" in longer.notes[1]


def test_an_unreachable_cluster_is_noted(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: Target) -> None:
        raise SpotmpiError("no route")

    monkeypatch.setattr(targets, "backend", refuse)
    cost = environment_cost(LAB, T0, Target("lab", tmp_path), account, NOW)
    assert cost.dollars == pytest.approx(2.70) and cost.bill.total("used") == 0
    assert "count as idle; reading the cluster failed: no route" in cost.notes[1]


def test_the_command_prints_an_environments_cost_and_the_difference_to_the_bill(
    account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path, BIG)
    record_run(tmp_path, SMALL)
    monkeypatch.setattr(environment, "of_stack", lambda stack: LAB)
    monkeypatch.setattr(targets, "backend", lambda target: Colleagues(tmp_path))
    monkeypatch.setattr("spotmpi.environments.cost.open_account", lambda region: account)
    monkeypatch.setattr("time.time", lambda: NOW)

    code, out, err = invoke("cost", "lab", "--since", "1d", "--runs", str(tmp_path))

    lines = out.splitlines()
    assert code == 0 and lines[0].startswith(f"{LAB.name}: $2.70 from ")
    assert lines[1] == "nodes: used by runs $1.70, booting $0.08, idle $0.92"
    assert lines[-1] == "EC2 on AWS's bill minus the nodes above: $+0.80 (system nodes, whole days)"
    assert any(line.split()[:2] == [example.TWO, "g5.xlarge"] and line.endswith("reclaimed") for line in lines)
    assert "nodes with their disks and addresses: control plane, system nodes, storage" in err
    code, _, err = invoke("cost", "lab", "--since", "90d")
    assert code == 2 and "give at most 42d: AWS keeps scaling activities no longer" in err
