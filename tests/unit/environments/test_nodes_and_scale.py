"""`spotmpi nodes` and `spotmpi scale`: the nodes of a cluster, and those that are kept ready for a while."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from spotmpi.aws.scaling import scaling_groups
from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.core import environment
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.environments.node_group_sizes import WarmNodes, keep_warm, open_groups
from spotmpi.environments.nodes import list_nodes, parse_quantity, with_placement
from tests.cloud.account.ec2 import machine
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import node, pod_on
from tests.cloud.fake_environment import Killed
from tests.command_line import invoke
from tests.unit.core.test_environment import OUTPUTS

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW = datetime(2040, 1, 1, 12, 0, tzinfo=UTC)  # AWS schedules in the future only
RUN = {"spotmpi.dev/run": "digits-1"}
LAB_OUTPUTS = {**OUTPUTS, "node_groups": [{**OUTPUTS["node_groups"][0], "max": 3}]}
LAB = environment.parse(LAB_OUTPUTS)


@pytest.fixture
def nodes(cluster: FakeCluster) -> FakeCluster:
    """A cluster with a node that is ready, one that is not, and one that takes no pods."""
    waiting = node("b") | {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    waiting["metadata"]["labels"]["eks.amazonaws.com/capacityType"] = "CAPACITY_BLOCK"
    cordoned = node("c", gpus=0)
    cordoned["spec"]["unschedulable"] = True
    cordoned["metadata"]["labels"] = {}
    cordoned["spec"]["providerID"] = "kind://docker/c"
    pods = [pod_on("a", "digits-1-0", **RUN), pod_on("a", "old", phase="Succeeded", **{"spotmpi.dev/run": "old-1"})]
    cluster.put(node("a"), waiting, cordoned, *pods, pod_on("a", "foreign"), pod_on(None, "digits-1-1", **RUN))
    return cluster


def test_each_node_has_its_capacity_placement_and_runs(nodes: FakeCluster) -> None:
    first, *rest = list_nodes(nodes.view(), "training", NOON.timestamp())

    assert (first.name, first.state, first.group, first.runs) == ("c", "cordoned", None, ())
    assert (first.type, first.market, first.instance, first.gpus) == (None, None, None, 0)
    assert [(each.name, each.state, each.runs) for each in rest] == [
        ("a", "ready", ("digits-1",)),
        ("b", "not ready", ()),
    ]
    one = rest[0]
    assert (one.type, one.zone, one.market, one.instance) == ("g4dn.xlarge", "us-east-1a", "spot", f"i-{'a':0>17}")
    assert rest[1].market == "capacity-block"
    assert (one.cpus, one.memory_gib, one.gpus, one.driver, one.age) == (3.92, 15.0, 1, "580.95.05", 3600.0)


def test_the_placement_of_a_machine_comes_from_ec2(nodes: FakeCluster) -> None:
    account = FakeAccount()
    place = {"AvailabilityZone": "us-east-1b", "GroupName": "spotmpi-lab-g4dn"}
    account.ec2.machines[f"i-{'a':0>17}"] = machine(Placement=place)
    unknown, confirmed, other = with_placement(list_nodes(nodes.view(), None, 0.0), account, "us-east-1")

    assert (confirmed.zone, confirmed.placement_group) == ("us-east-1b", "spotmpi-lab-g4dn")
    assert unknown.placement_group is other.placement_group is None
    assert with_placement([], account, "us-east-1") == () and len(account.requests_of("DescribeInstances")) == 1


@pytest.mark.parametrize(
    ("text", "number"), [("3920m", 3.92), ("15Gi", 15 * 2**30), ("4", 4), ("31Ki", 31744), ("1k", 1000), ("x", 0)]
)
def test_quantities_are_parsed(text: str, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.fixture
def lab_file(tmp_path: Path) -> Path:
    """The environment's exported values."""
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(LAB_OUTPUTS))
    return path


@pytest.mark.usefixtures("kubeconfig")
def test_a_cluster_that_does_not_answer_is_one_clear_line() -> None:
    with pytest.raises(SpotmpiError, match="could not list Nodes: cannot reach the cluster"):
        ClusterView(None).list("Node")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAccount]:
    """Moto's Auto Scaling with the environment's group in two parts of 2 and 1 nodes, and another environment's."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # thousands, which nothing here uses
    with mock_aws():
        account = FakeAccount(services=())
        scaling = account.client("autoscaling", "us-east-1")
        scaling.create_launch_configuration(LaunchConfigurationName="it", ImageId="ami-1", InstanceType="g4dn.xlarge")
        for name, most, owner in (("eks-lab-1", 2, "spotmpi-lab"), ("eks-lab-2", 1, "spotmpi-lab"), ("eks-x", 9, "x")):
            create_group(account, name, most, owner)
        account.requests.clear()
        yield account


def create_group(account: FakeAccount, name: str, most: int, owner: str = "spotmpi-lab") -> None:
    tags = {
        "eks:cluster-name": owner,
        "k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group": "g4dn",
        "spotmpi:nodes": f"0-{most}",
    }
    account.client("autoscaling", "us-east-1").create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchConfigurationName="it",
        MinSize=0,
        MaxSize=most,
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": False} for key, value in tags.items()],
    )


def sizes(account: FakeAccount) -> list[tuple[int, int]]:
    return [(group.min, group.desired) for group in scaling_groups(account, LAB)]


def scheduled_actions(account: FakeAccount) -> Any:
    return account.call("autoscaling", "us-east-1", "describe_scheduled_actions")["ScheduledUpdateGroupActions"]


def ends(account: FakeAccount) -> list[tuple[str, int, datetime]]:
    actions = scheduled_actions(account)
    return sorted((each["AutoScalingGroupName"], each["MinSize"], each["StartTime"]) for each in actions)


def keep(account: FakeAccount, nodes: int, minutes: int = 30) -> WarmNodes:
    return keep_warm(LAB, "g4dn", nodes, timedelta(minutes=minutes), account, NOW)


def test_nodes_are_kept_and_their_end_is_scheduled_with_aws_first(account: FakeAccount) -> None:
    warm = keep(account, 3)
    until = NOW + timedelta(minutes=30)
    assert (warm.nodes, warm.until) == (3, until)
    assert sizes(account) == [(2, 2), (1, 1)]
    assert ends(account) == [("eks-lab-1", 0, until), ("eks-lab-2", 0, until)]
    for group in ("eks-lab-1", "eks-lab-2"):
        requests = [name for name, _, request in account.requests if request.get("AutoScalingGroupName") == group]
        assert requests == ["PutScheduledUpdateGroupAction", "UpdateAutoScalingGroup"]


def test_nodes_are_released_at_once_and_a_second_call_moves_the_end(account: FakeAccount) -> None:
    keep(account, 3)

    later = keep(account, 1, minutes=120)
    assert later.until == NOW + timedelta(hours=2)
    assert ends(account) == [("eks-lab-1", 0, later.until)] and [least for least, _ in sizes(account)] == [1, 0]

    back = keep(account, 0)
    assert (back.until, back.nodes) == (None, 0)
    assert ends(account) == [] and [least for least, _ in sizes(account)] == [0, 0]
    assert keep(account, 0) == back


@pytest.mark.parametrize(
    ("group", "nodes", "minutes", "message"),
    [
        ("g5", 1, 30, "node_group = 'g5': environment spotmpi-lab has: g4dn"),
        ("g4dn", 4, 30, "N = 4: give 0 to 3, the max of group g4dn"),
        ("g4dn", -1, 30, "N = -1: give 0 to 3, the max of group g4dn"),
        ("g4dn", 1, 0.5, "--for = '30s': give at least 1m: AWS schedules by the minute"),
    ],
)
def test_invalid_requests_are_refused_and_nothing_changes(
    account: FakeAccount, group: str, nodes: int, minutes: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        keep_warm(LAB, group, nodes, timedelta(minutes=minutes), account)
    assert account.requests == []


def test_nodes_of_a_group_that_has_expired_are_refused(account: FakeAccount) -> None:
    for name in ("eks-lab-1", "eks-lab-2"):
        update(account, name, MinSize=0, MaxSize=0, DesiredCapacity=0)
    with pytest.raises(SpotmpiError, match="has max 0 now: `spotmpi up lab` opens groups"):
        keep(account, 1)
    assert ends(account) == [] and keep(account, 0).nodes == 0


def test_without_the_right_to_schedule_the_end_no_node_is_requested(account: FakeAccount) -> None:
    account.refuse("PutScheduledUpdateGroupAction", "AccessDenied")
    with pytest.raises(SpotmpiError, match="autoscaling:PutScheduledUpdateGroupAction in us-east-1 is not permitted"):
        keep(account, 1)
    assert sizes(account) == [(0, 0), (0, 0)]


def test_the_first_part_of_a_group_is_filled_first_whatever_its_name_ends_with(account: FakeAccount) -> None:
    first, second = "eks-spotmpi-lab-g4dn-f123456-0a1b2c3d", "eks-spotmpi-lab-g4dn-2-0123456-0a1b2c3d"
    for name in ("eks-lab-1", "eks-lab-2"):
        account.call("autoscaling", "us-east-1", "delete_auto_scaling_group", AutoScalingGroupName=name)
    for name, most in ((first, 2), (second, 1)):
        create_group(account, name, most)
    keep(account, 2)
    assert {group.name: group.min for group in scaling_groups(account, LAB)} == {first: 2, second: 0}


def kill_after(changes: int, account: FakeAccount, work: Callable[[], object]) -> bool:
    """Do *work* until that many calls have changed something; False where it ended before."""
    call, remaining = account.call, iter(range(changes))

    def counted(service: str, region: str, method: str, **request: Any) -> Any:
        if not method.startswith(("describe", "get")) and next(remaining, None) is None:
            raise Killed
        return call(service, region, method, **request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "call", counted)
        try:
            work()
        except Killed:
            return True
    return False


def update(account: FakeAccount, group: str, **size: int) -> None:
    account.call("autoscaling", "us-east-1", "update_auto_scaling_group", AutoScalingGroupName=group, **size)


def pass_time(account: FakeAccount, now: datetime) -> None:
    """Do what AWS does by itself until *now*: scheduled actions take effect at their time."""
    for action in scheduled_actions(account):
        if action["StartTime"] <= now:
            size = {key: action[key] for key in ("MinSize", "MaxSize", "DesiredCapacity") if key in action}
            update(account, action["AutoScalingGroupName"], **size)


@pytest.mark.parametrize("changes", range(5))
def test_warm_nodes_end_on_schedule_whenever_the_terminal_was_killed(account: FakeAccount, changes: int) -> None:
    assert kill_after(changes, account, lambda: keep(account, 3)) == (changes < 4)
    assert sum(least for least, _ in sizes(account)) == (0, 0, 2, 2, 3)[changes]
    pass_time(account, NOW + timedelta(minutes=31))
    assert [least for least, _ in sizes(account)] == [0, 0]


@pytest.mark.parametrize("changes", range(5))
def test_an_expired_environment_is_opened_no_longer_than_requested_whenever_the_terminal_was_killed(
    account: FakeAccount, changes: int
) -> None:
    for name in ("eks-lab-1", "eks-lab-2"):
        update(account, name, MinSize=0, MaxSize=0, DesiredCapacity=0)

    reopen = partial(open_groups, account, LAB, NOW + timedelta(hours=8))
    assert kill_after(changes, account, reopen) == (changes < 4)
    assert [group.max > 0 for group in scaling_groups(account, LAB)] == [changes >= 2, changes >= 4]

    pass_time(account, NOW + timedelta(hours=9))
    assert [group.max for group in scaling_groups(account, LAB)] == [0, 0]


@pytest.mark.parametrize(("times", "known"), [(2, True), (9, False)])
def test_nodes_says_for_how_long_it_waits_where_aws_throttles(
    nodes: FakeCluster,
    account: FakeAccount,
    lab_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    known: bool,
) -> None:
    pauses: list[list[float]] = []

    def opened(region: str, echo: Echo) -> FakeAccount:
        pauses.append(account.tell(echo))
        return account

    monkeypatch.setattr("spotmpi.backends.kubernetes.client.view.ClusterView", lambda context: nodes.view())
    monkeypatch.setattr("spotmpi.aws.account.open_account", opened)
    account.throttled["DescribeInstances"] = times
    code, _, err = invoke("nodes", "--on", str(lab_file))
    assert code == 0 and pauses == [[10.0, 20.0, 40.0][:times]]
    assert "ec2:DescribeInstances in us-east-1: throttled by AWS; sent again in 10 s" in err
    assert ("placement groups are unknown: ec2:DescribeInstances in us-east-1: throttled" in err) != known


def test_the_commands_print_nodes_and_warm_nodes(
    nodes: FakeCluster, account: FakeAccount, lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_lab = ("--on", str(lab_file))
    monkeypatch.setattr("spotmpi.environments.node_group_sizes.open_account", lambda region: account)
    monkeypatch.setattr("spotmpi.backends.kubernetes.client.view.ClusterView", lambda context: nodes.view())
    account.refuse("DescribeInstances", "UnauthorizedOperation")
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region, echo: account)

    code, out, _ = invoke("scale", "g4dn", "2", "--for", "1h", *on_lab)
    assert code == 0 and out.startswith("g4dn: 0 running, at least 2 until ")
    code, out, _ = invoke("scale", "g4dn", "0", *on_lab)
    assert out == "g4dn: 2 running; idle nodes are released within ten minutes, down to 0\n"
    code, out, err = invoke("nodes", *on_lab)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and rows[0][:3] == ["NODE", "STATE", "GROUP"]
    assert [row[0] for row in rows[1:]] == ["c", "a", "b"] and rows[2][-1] == "digits-1"
    assert "placement groups are unknown: ec2:DescribeInstances in us-east-1 is not permitted" in err
    assert invoke("nodes", "--on", "local")[0] == 2
    assert invoke("scale", "g4dn", "1", "--on", "kubernetes")[0] == 2
