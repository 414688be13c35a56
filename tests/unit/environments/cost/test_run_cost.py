"""The cost of a run, compared with an example computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from spotmpi.backends.kubernetes.submit.target import hourly_rate
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.errors import InputError
from spotmpi.environments.cost import Cost, run_cost
from spotmpi.spec.source import from_values
from tests.cloud.account.fake_account import FakeAccount
from tests.command_line import invoke
from tests.unit.environments.cost.example import (
    BIG,
    HOUR,
    INTERRUPTION,
    LAB,
    NOW,
    ONE,
    SMALL,
    T0,
    TWO,
    activity,
    record_run,
)


def test_a_run_costs_its_share_of_the_machines_in_its_record(
    account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path, BIG, environment="spotmpi-lab")
    record_run(tmp_path, SMALL)
    environments = {"lab": LAB}
    monkeypatch.setattr(environment, "of_stack", lambda stack: environments[stack])

    cost = run_cost("bi", Target(runs_folder=tmp_path), None, account, NOW)

    assert (cost.dollars, cost.shares[0].waiting) == pytest.approx((1.50, 0.08))
    assert [share.run for share in cost.shares] == ["big"]


def test_a_machine_that_ec2_took_back_in_its_first_hour_costs_a_run_nothing(
    account: FakeAccount, tmp_path: Path
) -> None:
    """Amazon EC2 User Guide, Billing for interrupted Spot Instances; the history of the node groups tells which."""
    early = T0 + 0.9 * HOUR
    record_run(tmp_path, [replace(use, ended=early) for use in BIG[:2]], outputs=LAB.model_dump(mode="json"))
    account.autoscaling.activities["eks-gpus"][:2] = [activity("Terminating", TWO, 0.8, INTERRUPTION)]
    # The environment has grown to another zone since then.
    account.autoscaling.add("eks-gpus-b", {CLUSTER_TAG: LAB.cluster, GROUP_TAG: "gpus-b"}, most=8)

    def cost() -> Cost:
        return run_cost("big", Target(runs_folder=tmp_path), None, account, NOW)

    account.refuse("DescribeScalingActivities", "AccessDenied")
    assert cost().dollars == pytest.approx(2 * 0.4 * 0.4)
    assert cost().notes[0].startswith("machines that EC2 took back in their first hour have their full price: auto")
    account.refusals.clear()  # the cost that was incomplete is not the one that stays
    assert cost().dollars == pytest.approx(0.4 * 0.4) and cost().notes == ()


def test_a_finished_runs_cost_is_saved_and_outlives_its_environment(
    account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path, BIG, environment="spotmpi-lab", outputs=LAB.model_dump(mode="json"))
    record_run(tmp_path, SMALL)
    monkeypatch.setattr(environment, "of_stack", lambda stack: pytest.fail("the stack is gone"))

    def cost_at(hour: float) -> Cost:
        return run_cost("big", Target(runs_folder=tmp_path), None, account, T0 + hour * HOUR)

    first = cost_at(9)
    assert first.dollars == pytest.approx(1.50)
    account.requests.clear()
    assert cost_at(99) == first and account.requests == []

    # A resumed run is computed again, and so is one whose saved cost is unreadable.
    monkeypatch.setattr("spotmpi.runs.reader.alive", lambda paths: True)
    events = tmp_path / "big" / "events.jsonl"
    more = {"t": T0 + 4 * HOUR, "event": "started", "attempt": 3, "machines": [{"member": "node/0", "instance": ONE}]}
    events.write_text(events.read_text() + json.dumps(more) + "\n")
    assert cost_at(5).dollars == pytest.approx(1.50 + 0.60)
    events.write_text(events.read_text() + json.dumps({"t": T0 + 5 * HOUR, "event": "succeeded"}) + "\n")
    (tmp_path / "big" / "bill.json").write_text("{")
    assert cost_at(9).dollars == pytest.approx(1.50 + 0.60)


def test_a_machine_is_paid_at_the_market_that_its_agents_recorded(account: FakeAccount, tmp_path: Path) -> None:
    like = LAB.node_groups[0].model_dump(mode="json")
    groups = [{**like, "market": market} for market in ("spot", "on-demand")]
    record_run(tmp_path, BIG, outputs={**LAB.model_dump(mode="json"), "node_groups": groups})
    events = tmp_path / "big" / "events.jsonl"
    unknown = events.read_text()
    with pytest.raises(InputError, match=r"is of type g5\.xlarge, spotmpi-lab has g5\.xlarge, g5\.xlarge: give price"):
        run_cost("big", Target(runs_folder=tmp_path), None, account, NOW)

    lines = [json.loads(line) for line in unknown.splitlines()]
    for machine in (machine for line in lines for machine in line.get("machines", [])):
        machine["market"] = "spot"
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_cost("big", Target(runs_folder=tmp_path), None, account, NOW).dollars == pytest.approx(1.50 + 0.20)


def test_a_machine_in_a_capacity_block_costs_its_disk_and_address_alone(account: FakeAccount, tmp_path: Path) -> None:
    values = LAB.model_dump(mode="json")
    spot = [{**each, "disk_gib": 100, "public_address": True} for each in values["node_groups"]]
    dollars = []
    for name, groups in (("spot", spot), ("block", [{**each, "market": "capacity-block"} for each in spot])):
        record_run(tmp_path / name, BIG, outputs={**values, "node_groups": groups})
        target = Target(runs_folder=tmp_path / name)
        dollars.append(run_cost("big", target, None, account, NOW).dollars)
    assert dollars[1] is not None and dollars[0] is not None
    assert 0 < dollars[1] < 0.1 * dollars[0] and dollars[0] - dollars[1] == pytest.approx(1.50 + 0.20)


def test_a_given_price_needs_no_aws(tmp_path: Path) -> None:
    record_run(tmp_path, BIG)
    cost = run_cost("big", Target(runs_folder=tmp_path), price=1.0, now=NOW)
    assert cost.dollars == pytest.approx(1.5 * 2 + 1.0)


@pytest.mark.parametrize(
    ("backend", "dollars"), [("kubernetes", 1.5 * 2 * 1.0 + 1.0 * 3.0), ("local", 1.5 * 2 * 2.0 + 3.0)]
)
def test_each_attempt_costs_the_price_that_it_was_submitted_with(tmp_path: Path, backend: str, dollars: float) -> None:
    """A resume with another price changed what the attempts before had cost, but not in the report."""
    record_run(tmp_path, BIG, backend=backend)
    spec = tmp_path / "big" / "spec.toml"
    spec.write_text(f"price = 3.0\n{spec.read_text()}")
    for number, members, rate, began in ((1, ["a", "b"], 2.0, 0.5), (2, ["a"], 3.0, 2.0)):
        folder = tmp_path / "big" / "attempts" / str(number)
        folder.mkdir(parents=True)
        world = {"members": members, "ranks": 1, "size": len(members), "rate": rate}
        times = {"allocated": T0 + began * HOUR, "started": T0 + began * HOUR, "ended": T0 + (1 + number) * HOUR}
        values = {"cause": "interruption", "last_iteration": None, "world": world, **times}
        (folder / "node-0.json").write_text(json.dumps(values))
    assert run_cost("big", Target(runs_folder=tmp_path), now=NOW).dollars == pytest.approx(dollars)


def test_the_workers_of_each_stage_of_a_stream_cost_their_own_price(tmp_path: Path) -> None:
    record_run(tmp_path, BIG)
    events, spec = tmp_path / "big" / "events.jsonl", tmp_path / "big" / "spec.toml"
    joined = [
        {"t": T0 + HOUR, "event": "joined", "member": f"{role}/1", "machine": {"name": role[0]}}
        for role in ("worker", "postprocess")
    ]
    events.write_text("\n".join([*map(json.dumps, joined), events.read_text()]))
    stream = '[stream]\nsource = "a:b"\nlength = 1\npostprocess = "a:c"\nworkers = { count = 1, price = 0.1 }\n'
    stream += "postprocess_workers = { count = 1, price = 0.3 }\n"
    spec.write_text(f"price = 1.0\n{spec.read_text() if spec.exists() else ''}{stream}")
    cost = run_cost("big", Target(runs_folder=tmp_path), now=NOW)
    prices = {each.lifetime.machine: each.dollars / each.hours for each in cost.bill.machines}
    assert [prices["w"], prices["p"]] == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize("plan", [{}, {"backend": "local", "environment": {"PATH": "/bin"}}], ids=["unknown", "local"])
def test_a_run_without_an_environment_needs_a_price(tmp_path: Path, plan: dict[str, Any]) -> None:
    record_run(tmp_path, BIG, **plan)
    with pytest.raises(InputError, match=r"price: the price of a node is unknown: give price, or the run"):
        run_cost("big", Target(runs_folder=tmp_path))


def test_the_price_of_a_node_for_a_limit_is_that_of_the_most_expensive_group(
    account: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotmpi.aws.prices.open_account", lambda region: account)
    spec = from_values({"command": ["true"], "launcher": "none", "limits": {"cost": 5}})
    assert hourly_rate(spec, LAB) == 0.60
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    with pytest.raises(InputError, match=r"price: set it: the price of a node is unknown: .* not permitted"):
        hourly_rate(spec, LAB)


def test_the_command_prints_a_runs_cost_with_a_given_price(tmp_path: Path) -> None:
    record_run(tmp_path, BIG)

    code, out, _ = invoke("cost", "big", "--price", "1", "--runs", str(tmp_path))

    assert code == 0 and out.startswith("big (succeeded): $4.00 from ")
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["RUN", "USER", "TEAM", "NODE-HOURS", "WAITING", "$", "TRAINING", "$"],
        ["big", "ann", "vision", "4.00", "0.20", "3.80"],
    ]
    code, out, _ = invoke("cost", "big", "--price", "0.001", "--runs", str(tmp_path))
    assert out.startswith("big (succeeded): < $0.01 from ")
    assert out.splitlines()[2].split()[3:] == ["4.00", "<", "0.01", "<", "0.01"]
    code, out, _ = invoke("cost", "big", "--price", "1", "--runs", str(tmp_path), "--json")
    assert json.loads(out)["dollars"] == pytest.approx(4.0)
    for invalid in ("-1", "nan", "inf"):
        assert invoke("cost", "big", "--price", invalid, "--runs", str(tmp_path))[0] == 2


def test_a_runs_cost_is_printed_and_saved_when_its_follower_sees_it_end(
    account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path, BIG, outputs=LAB.model_dump(mode="json"))
    record_run(tmp_path, SMALL)
    monkeypatch.setattr("spotmpi.environments.cost.open_account", lambda region: account)
    follow = ("logs", "-f", "big", "--runs", str(tmp_path))

    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    code, _, err = invoke(*follow)
    assert code == 0 and "the cost of this run is not known yet, try `spotmpi cost big` later: " in err
    assert "not permitted" in err and not (tmp_path / "big" / "bill.json").exists()
    account.refusals.clear()
    code, _, err = invoke(*follow)
    assert code == 0 and err.endswith("spotmpi: cost of its nodes: $1.50\n")
    account.requests.clear()
    assert run_cost("big", Target(runs_folder=tmp_path), None, account, T0 + 99 * HOUR).dollars == pytest.approx(1.50)
    assert account.requests == []
    code, _, err = invoke("logs", "-f", "small", "--runs", str(tmp_path))
    assert code == 0 and "cost" not in err


@pytest.mark.parametrize("with_pulumi", [True, False])
def test_a_word_that_is_neither_a_run_nor_a_stack_is_said_to_be_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_pulumi: bool
) -> None:
    """The line named pulumi alone, though a run was meant."""
    if with_pulumi:
        fake = tmp_path / "pulumi"
        fake.write_text("#!/bin/sh\necho \"error: no stack named 'big-2' found\" >&2\nexit 255\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":" if with_pulumi else None)
    code, out, err = invoke("cost", "big-2", "--runs", str(tmp_path))
    reason = "stack big-2 is not built: " if with_pulumi else "command not found: pulumi"
    first = "no run has the id big-2 (`spotmpi list` lists the runs), and no environment of this name is found: "
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith(f"spotmpi: {first}{reason}")
