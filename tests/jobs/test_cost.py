"""What runs and machines cost, against an example that was computed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs import environment
from jobs.backends import choose
from jobs.backends.choose import Where
from jobs.cloud.bill import Curve, Life, Use, make_bill
from jobs.cloud.cost import environment_cost, run_cost
from jobs.cloud.node_price import node_price
from jobs.errors import InputError, SpotmpiError
from tests.jobs.conftest import InProcess
from tests.jobs.scripted_account import ScriptedAccount
from tests.jobs.test_environment import OUTPUTS

KIND = ("g5.xlarge", "us-east-1a", "spot")
T0 = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0
ONE, TWO = "i-0000000000000000a", "i-0000000000000000b"

# The example. Hours after T0; g5.xlarge costs $0.40 an hour at first and $0.60 from hour 2.5 on.
#   machine ONE  0.0 launched, 0.1 in service; `big` from 0.5 (training from 0.6) to 2.0 and again, alone, to 3.0;
#                idle from 3.0 to 4.0, ended
#   machine TWO  0.0 launched, 0.1 in service; `big` from 0.5 to 2.0, shared with `small` from 1.0 on; reclaimed at 2.0
# By hand:
#   ONE  boot 0.1 h x 0.40 = 0.04; idle 0.4 h x 0.40 + 1.0 h x 0.60 = 0.76; used 2.0 h x 0.40 + 0.5 h x 0.60 = 1.10
#   TWO  boot 0.04; idle 0.4 h x 0.40 = 0.16; used 1.5 h x 0.40 = 0.60
#   big    waiting 2 x 0.1 h x 0.40 = 0.08; training ONE 1.10 - 0.04, TWO 0.4 h x 0.40 + half of 1.0 h x 0.40 = 0.36
#   small  half of 1.0 h x 0.40 = 0.20
CHANGES = [(-20.0, "0.40"), (2.5, "0.60")]
BIG = [
    Use("big", "ann", "vision", ONE, T0 + 0.5 * HOUR, T0 + 0.6 * HOUR, T0 + 2 * HOUR),
    Use("big", "ann", "vision", TWO, T0 + 0.5 * HOUR, T0 + 0.6 * HOUR, T0 + 2 * HOUR),
    Use("big", "ann", "vision", ONE, T0 + 2 * HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR),
]
SMALL = [Use("small", "bob", "none", TWO, T0 + HOUR, T0 + HOUR, T0 + 2 * HOUR)]
LIVES = [
    Life(ONE, "ip-10-0-0-1.ec2.internal", "gpus", KIND, T0, T0 + 0.1 * HOUR, T0 + 4 * HOUR),
    Life(TWO, None, "gpus", KIND, T0, T0 + 0.1 * HOUR, T0 + 2 * HOUR, reclaimed=True),
]
CURVES = {KIND: Curve(tuple((T0 + hour * HOUR, float(price)) for hour, price in CHANGES))}


def test_the_worked_example_comes_to_what_was_computed_by_hand() -> None:
    bill = make_bill(LIVES, [*BIG, *SMALL], CURVES, since=T0 - HOUR, now=T0 + 9 * HOUR)

    one, two = bill.machines
    assert (one.boot, one.idle, one.used) == pytest.approx((0.04, 0.76, 1.10))
    assert (two.boot, two.idle, two.used) == pytest.approx((0.04, 0.16, 0.60))
    big, small = bill.runs
    assert (big.hours, big.waiting, big.training) == pytest.approx((2.5 + 1.0, 0.08, 1.06 + 0.36))
    assert (small.hours, small.waiting, small.training) == pytest.approx((0.5, 0.0, 0.20))
    assert bill.dollars == pytest.approx(2.70)
    assert list(bill.by("owner")) == ["ann", "bob"] and bill.by("owner") == pytest.approx({"ann": 1.50, "bob": 0.20})
    assert sum(bill.by("team").values()) == pytest.approx(bill.total("used"))


def test_only_the_time_that_is_asked_for_counts_and_what_lives_counts_until_now() -> None:
    living = [Life(ONE, None, "gpus", KIND, T0, T0, None)]

    assert make_bill(living, [], CURVES, T0 + HOUR, T0 + 3 * HOUR).dollars == pytest.approx(1.5 * 0.4 + 0.5 * 0.6)
    assert make_bill(LIVES, [], CURVES, T0 + 5 * HOUR, T0 + 6 * HOUR).machines == ()
    running = [Use("r", "ann", "none", ONE, T0, T0, None)]
    assert make_bill(living, running, CURVES, T0, T0 + HOUR).runs[0].training == pytest.approx(0.4)


def activity(verb: str, machine: str, hour: float, ended: float, cause: str = "a user request") -> dict[str, Any]:
    return {
        "Description": f"{verb} EC2 instance: {machine}",
        "Cause": f"At 2026-11-20 {cause}",
        "StatusCode": "Successful",
        "StartTime": datetime.fromtimestamp(T0 + hour * HOUR, UTC),
        "EndTime": datetime.fromtimestamp(T0 + ended * HOUR, UTC),
        "Details": json.dumps({"Subnet ID": "subnet-1", "Availability Zone": "us-east-1a"}),
    }


@pytest.fixture
def there() -> environment.Environment:
    group = {**OUTPUTS["node_groups"][0], "name": "gpus", "type": "g5.xlarge", "market": "spot"}
    return environment.parse({**OUTPUTS, "region": "us-east-1", "zone": "us-east-1a", "node_groups": [group]})


@pytest.fixture
def account(one_account: ScriptedAccount, there: environment.Environment) -> ScriptedAccount:
    made = one_account
    made.asked.clear()
    tags = [{"Key": "k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group", "Value": "gpus"}]
    sizes = {"MinSize": 0, "MaxSize": 8, "DesiredCapacity": 1}
    failed = {**activity("Launching a new", "i-0fffffffffffffff0", 0, 0), "StatusCode": "Failed"}
    history = [
        {
            "InstanceType": "g5.xlarge",
            "AvailabilityZone": "us-east-1a",
            "Timestamp": datetime.fromtimestamp(T0 + hour * HOUR, UTC),
            "SpotPrice": price,
        }
        for hour, price in CHANGES
    ]

    def groups(region: str, asked: Mapping[str, Any]) -> Any:
        assert asked["Filters"] == [{"Name": "tag:eks:cluster-name", "Values": [there.cluster]}]
        system = {"AutoScalingGroupName": "eks-system", "Tags": [], **sizes}
        return {"AutoScalingGroups": [{"AutoScalingGroupName": "eks-gpus", "Tags": tags, **sizes}, system]}

    made.answers = {
        "DescribeAutoScalingGroups": groups,
        "DescribeScalingActivities": lambda region, asked: {
            "Activities": [
                activity("Terminating", ONE, 4.0, 4.1),
                activity("Terminating", TWO, 2.0, 2.1, "an EC2 instance rebalance recommendation"),
                failed,
                activity("Launching a new", TWO, 0.0, 0.1),
                activity("Launching a new", ONE, 0.0, 0.1),
            ]
        },
        "DescribeInstances": lambda region, asked: {
            "Reservations": [{"Instances": [{"InstanceId": ONE, "PrivateDnsName": "ip-10-0-0-1.ec2.internal"}]}]
        },
        "DescribeSpotPriceHistory": lambda region, asked: {"SpotPriceHistory": history},
        "GetCostAndUsage": lambda region, asked: {
            "ResultsByTime": [
                {"Groups": [service("Amazon Elastic Compute Cloud - Compute", "3.10"), service("EC2 - Other", "0.5")]},
                {"Groups": [service("Amazon Elastic Compute Cloud - Compute", "0.40")]},
            ]
        },
    }
    return made


def service(name: str, spent: str) -> dict[str, Any]:
    return {"Keys": [name], "Metrics": {"UnblendedCost": {"Amount": spent, "Unit": "USD"}}}


def recorded(folder: Path, uses: list[Use], **plan: Any) -> None:
    """The run folder of a run that held machines as *uses* say."""
    paths = folder / uses[0].run
    paths.mkdir(parents=True)
    queue = "" if uses[0].team == "none" else f'[kubernetes]\nqueue = "{uses[0].team}"\n'
    (paths / "spec.toml").write_text(f'command = ["train"]\n{queue}')
    (paths / "plan.yaml").write_text(json.dumps(plan))
    events: list[dict[str, Any]] = [{"t": uses[0].began, "event": "submitted", "owner": uses[0].owner}]
    for attempt, ended in enumerate(sorted({use.ended or 0 for use in uses}), 1):
        own = [use for use in uses if use.ended == ended]
        machines = [
            {"node": k, "since": u.began, "instance": u.machine, "type": "g5.xlarge"} for k, u in enumerate(own)
        ]
        events += [{"t": own[0].started, "event": "started", "attempt": attempt, "machines": machines}]
        events += [{"t": ended, "event": "interrupted" if ended < uses[-1].ended else "succeeded"}]  # type: ignore[operator]
    (paths / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_an_environment_costs_what_its_machines_did_though_nobody_watched(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path
) -> None:
    recorded(tmp_path, BIG)
    recorded(tmp_path, SMALL)

    cost = environment_cost(there, T0 - HOUR, Where(runs_folder=tmp_path), account.aws, T0 + 9 * HOUR)

    assert cost.bill == make_bill(LIVES, [*BIG, *SMALL], CURVES, T0 - HOUR, T0 + 9 * HOUR)
    assert cost.billed == {"Amazon Elastic Compute Cloud - Compute": pytest.approx(3.5), "EC2 - Other": 0.5}
    (asked,) = account.calls("GetCostAndUsage")
    assert asked["TimePeriod"] == {"Start": "2026-11-20", "End": "2026-11-21"}
    assert asked["Filter"]["Tags"] == {"Key": "spotmpi:environment", "Values": [there.name]}


def test_a_machine_that_only_tells_its_nodes_name_is_known_by_it_too() -> None:
    uses = [Use("old", "ann", "none", "ip-10-0-0-1.ec2.internal", T0 + HOUR, T0 + HOUR, T0 + 2 * HOUR)]

    bill = make_bill(LIVES, uses, CURVES, T0, T0 + 9 * HOUR)

    assert bill.runs[0].dollars == pytest.approx(0.40) and bill.machines[1].used == 0


def test_where_the_bill_may_not_be_read_the_rest_is_there(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path
) -> None:
    account.refuse("GetCostAndUsage", "AccessDeniedException")

    cost = environment_cost(there, T0, Where(runs_folder=tmp_path), account.aws, T0 + 9 * HOUR)

    assert cost.billed is None and cost.dollars == pytest.approx(2.70)
    assert "no bill to compare with: ce:GetCostAndUsage in us-east-1 is not permitted" in cost.notes[-1]


def test_a_run_costs_its_part_of_the_machines_that_its_own_record_names(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, BIG, environment="spotmpi-lab")
    recorded(tmp_path, SMALL)
    asked: list[str] = []

    def of_stack(stack: str) -> environment.Environment:
        asked.append(stack)
        return there

    monkeypatch.setattr(environment, "of_stack", of_stack)

    cost = run_cost("bi", tmp_path, None, account.aws, T0 + 9 * HOUR)

    assert asked == ["lab"]
    assert (cost.dollars, cost.shares[0].waiting) == pytest.approx((1.50, 0.08))
    assert [share.run for share in cost.shares] == ["big"]


def test_a_run_is_told_after_its_environment_is_gone_and_when_nobody_can_be_asked(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, BIG, environment="spotmpi-lab", there=there.model_dump(mode="json"))
    recorded(tmp_path, SMALL)
    monkeypatch.setattr(environment, "of_stack", lambda stack: pytest.fail("the stack is gone"))

    first = run_cost("big", tmp_path, None, account.aws, T0 + 9 * HOUR)
    assert first.dollars == pytest.approx(1.50)
    account.asked.clear()
    assert run_cost("big", tmp_path, None, account.aws, T0 + 99 * HOUR) == first
    assert account.asked == []

    # Resumed, it is computed anew; what cannot be read is, too.
    events = tmp_path / "big" / "events.jsonl"
    more = {"t": T0 + 4 * HOUR, "event": "started", "attempt": 3, "machines": [{"node": 0, "instance": ONE}]}
    events.write_text(events.read_text() + json.dumps(more) + "\n")
    assert run_cost("big", tmp_path, None, account.aws, T0 + 5 * HOUR).dollars == pytest.approx(1.50 + 0.60)
    events.write_text(events.read_text() + json.dumps({"t": T0 + 5 * HOUR, "event": "succeeded"}) + "\n")
    (tmp_path / "big" / "bill.json").write_text("{")
    assert run_cost("big", tmp_path, None, account.aws, T0 + 9 * HOUR).dollars == pytest.approx(1.50 + 0.60)


class _Colleagues:
    """A place where a run of somebody else is; its list brings the record here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[object]:
        if not (self._folder / "small").exists():
            recorded(self._folder, SMALL)
        return []


def test_a_colleagues_run_on_the_cluster_is_no_idle_time_and_what_nobody_held_is(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, BIG)
    monkeypatch.setattr(choose, "backend", lambda where: _Colleagues(tmp_path))

    cost = environment_cost(there, T0 - HOUR, Where("lab", tmp_path), account.aws, T0 + 9 * HOUR)

    assert cost.bill.by("owner") == pytest.approx({"ann": 1.50, "bob": 0.20})
    assert cost.bill.total("idle") == pytest.approx(0.92)
    assert not any("count as idle" in note for note in cost.notes)


def test_a_cluster_that_cannot_be_asked_for_runs_is_said(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(where: Where) -> None:
        raise SpotmpiError("no route")

    monkeypatch.setattr(choose, "backend", refused)
    cost = environment_cost(there, T0, Where("lab", tmp_path), account.aws, T0 + 9 * HOUR)
    assert cost.dollars == pytest.approx(2.70) and cost.bill.total("used") == 0
    assert "count as idle, since the cluster can't be asked: no route" in cost.notes[1]


def test_a_given_price_asks_nobody_and_none_is_asked_for(tmp_path: Path) -> None:
    recorded(tmp_path, BIG)

    assert run_cost("big", tmp_path, price=1.0, now=T0 + 9 * HOUR).dollars == pytest.approx(1.5 * 2 + 1.0)
    with pytest.raises(InputError, match=r"price: what a node costs is not known: give --price, or name"):
        run_cost("big", tmp_path)


def test_the_price_of_a_node_for_a_limit_is_that_of_the_dearest_group(
    account: ScriptedAccount, there: environment.Environment
) -> None:
    assert node_price(there, there.node_groups, account.aws) == 0.60
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    with pytest.raises(
        InputError, match=r"price: set it, since what a node costs could not be learnt: .* not permitted"
    ):
        node_price(there, there.node_groups, account.aws)


def test_the_command_shows_a_run_by_a_given_price(tmp_path: Path, in_process: InProcess) -> None:
    recorded(tmp_path, BIG)

    code, said, _ = in_process("cost", "big", "--price", "1", "--runs", str(tmp_path))

    assert code == 0 and said.startswith("big (succeeded): $4.00 from ")
    assert [line.split() for line in said.splitlines()[1:3]] == [
        ["RUN", "USER", "TEAM", "NODE-HOURS", "WAITING", "$", "TRAINING", "$"],
        ["big", "ann", "vision", "4.00", "0.20", "3.80"],
    ]
    code, said, _ = in_process("cost", "big", "--price", "1", "--runs", str(tmp_path), "--json")
    assert json.loads(said)["dollars"] == pytest.approx(4.0)
    assert in_process("cost", "big", "--price", "-1")[0] == 2


def test_the_command_shows_an_environment_and_how_far_the_bill_is_away(
    account: ScriptedAccount,
    there: environment.Environment,
    tmp_path: Path,
    in_process: InProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(tmp_path, BIG)
    recorded(tmp_path, SMALL)
    monkeypatch.setattr(environment, "of_stack", lambda stack: there)
    monkeypatch.setattr(choose, "backend", lambda where: _Colleagues(tmp_path))
    monkeypatch.setattr("jobs.cloud.cost.open_account", lambda region: account.aws)
    monkeypatch.setattr("time.time", lambda: T0 + 9 * HOUR)

    code, said, complaint = in_process("cost", "lab", "--since", "1d", "--runs", str(tmp_path))

    lines = said.splitlines()
    assert code == 0 and lines[0].startswith(f"{there.name}: $2.70 from ")
    assert lines[1] == "nodes: used by runs $1.70, booting $0.08, idle $0.92"
    assert lines[-1] == "EC2 by AWS's bill less the nodes above: $+0.80 (system nodes, whole days)"
    assert any(line.split()[:2] == [TWO, "g5.xlarge"] and line.endswith("reclaimed") for line in lines)
    assert "control plane, system nodes, disks, storage and traffic come on top" in complaint
    code, _, complaint = in_process("cost", "lab", "--since", "90d")
    assert code == 2 and "AWS tells of the last 42d at most" in complaint
