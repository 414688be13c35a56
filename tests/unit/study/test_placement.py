"""Where the nodes of a trial really were: AWS is asked, and what it says is held against what the environment claims.

A reader sees a table of nodes with who told it; where AWS and the environment differ a warning names the node, and
where AWS could not be asked the table says that this is the environment's word.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotmpi.backends.base import Backend
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.report.gather import gather
from spotmpi.report.report import Report
from spotmpi.study.execution import BackendRunner, PlacementRecorder
from spotmpi.study.study import ALLREDUCE
from tests.cloud.account.ec2 import machine
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import node
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.report.recorded_runs import NOW, SPEC, START, Recorded, record, study_report

CLAIM = {"type": "g5.xlarge", "market": "spot", "zone": "us-east-1a", "placement_group": "yes", "node_group": "g5"}
PLACED = {"AvailabilityZone": "us-east-1a", "GroupName": "spotmpi-lab-g5"}


def instance(name: str) -> str:
    return f"i-{name:0>17}"


def ran_on(paths: RunPaths, *nodes: str, claim: Mapping[str, str] = CLAIM, with_instances: bool = True) -> None:
    """A run in an environment whose pods were on *nodes*; *with_instances* they know their EC2 instance."""
    plan = json.loads(paths.plan.read_text())
    paths.plan.write_text(json.dumps({**plan, "outputs": OUTPUTS}))
    paths.summary.write_text(json.dumps({"hardware": [{**claim, "nodes": list(range(len(nodes)))}]}))
    machines = [
        {"member": f"node/{at}", "since": START, "name": name, "instance": instance(name) if with_instances else None}
        for at, name in enumerate(nodes)
    ]
    with paths.events.open("a") as events:
        events.write(json.dumps({"t": START, "event": "started", "attempt": 1, "machines": machines}) + "\n")


@dataclass
class Machines:
    """The machines of an account, and the run `run-0` on some of them."""

    account: FakeAccount
    paths: RunPaths

    def has(self, name: str, kind: str = "g5.xlarge", market: str | None = "spot", **place: str) -> None:
        self.account.ec2.machines[instance(name)] = machine(
            InstanceType=kind, Placement={**PLACED, **place}, InstanceLifecycle=market
        )

    def record_placement(self, paths: RunPaths | None = None, cluster: FakeCluster | None = None) -> list[str]:
        """The messages while AWS was queried."""
        messages: list[str] = []
        recorder = PlacementRecorder(
            messages.append, lambda _: self.account, lambda _: (cluster or FakeCluster()).view()
        )
        recorder.record(paths or self.paths)
        return messages

    def report(self) -> Report:
        return gather(["run-0"], self.paths.folder.parent, NOW)


@pytest.fixture
def machines(account: FakeAccount, runs: Path) -> Machines:
    return Machines(account, record(runs, "run-0", SPEC, Recorded()))


def node_rows(report: Report) -> list[dict[str, str]]:
    for section in report.sections:
        if section.title == "Nodes":
            return [dict(zip(section.header, row, strict=True)) for row in section.cells]
    return []


def on_nodes(report: Report) -> list[str]:
    """The warnings about nodes."""
    return [each for each in report.warnings if each.startswith(("According to AWS", "Some runs had nodes"))]


def test_a_node_that_aws_confirms_has_no_caveat(machines: Machines) -> None:
    ran_on(machines.paths, "a", "b")
    machines.has("a")
    machines.has("b")
    assert machines.record_placement() == []

    report = machines.report()
    (row,) = node_rows(report)
    assert row == {
        "Nodes": "2",
        "Type": "g5.xlarge",
        "Market": "spot",
        "Zone": "us-east-1a",
        "Placement group": "spotmpi-lab-g5",
        "Source": "AWS",
        "Variants": "all",
    }
    assert on_nodes(report) == []
    (run,) = report.to_json()["rows"][0]["runs"]
    assert run["nodes"][1] == {
        "name": f"b ({instance('b')})",
        "type": "g5.xlarge",
        "market": "spot",
        "zone": "us-east-1a",
        "placement_group": "spotmpi-lab-g5",
        "source": "AWS",
    }


@pytest.mark.parametrize(
    ("really", "claim", "warning"),
    [
        ({"GroupName": ""}, {}, "is in no placement group, but the environment specifies one"),
        ({}, {"placement_group": "no"}, "is in placement group spotmpi-lab-g5, but the environment specifies none"),
        ({"AvailabilityZone": "us-east-1b"}, {}, "is in zone us-east-1b, but the environment specifies us-east-1a"),
        ({"kind": "g5.2xlarge"}, {}, "is of type g5.2xlarge, but the environment specifies g5.xlarge"),
        ({"market": None}, {}, "is of market on-demand, but the environment specifies spot"),
        ({"market": "capacity-block"}, {}, "is of market capacity-block, but the environment specifies spot"),
    ],
)
def test_where_aws_and_the_environment_differ_the_node_is_named(
    machines: Machines, really: dict[str, Any], claim: dict[str, str], warning: str
) -> None:
    ran_on(machines.paths, "a", claim={**CLAIM, **claim})
    machines.has("a", **really)
    machines.record_placement()
    (message,) = on_nodes(machines.report())
    assert f"According to AWS, a ({instance('a')}) {warning}" in message


def test_a_node_in_any_of_several_groups_confirms_the_claim(machines: Machines) -> None:
    both = {"type": "g5.xlarge or g4dn.xlarge", "market": "spot or on-demand", "placement_group": "yes or no"}
    ran_on(machines.paths, "a", claim={**CLAIM, **both})
    machines.has("a", "g4dn.xlarge", None, GroupName="")
    machines.record_placement()
    report = machines.report()
    assert on_nodes(report) == [] and node_rows(report)[0]["Placement group"] == "none"


def test_an_older_machine_does_not_know_its_name_in_ec2_but_the_cluster_does(
    machines: Machines, cluster: FakeCluster
) -> None:
    ran_on(machines.paths, "a", "gone", with_instances=False)
    machines.has("a")
    cluster.put(node("a"), node("other"))
    machines.record_placement(cluster=cluster)
    assert [(row["Nodes"], row["Source"]) for row in node_rows(machines.report())] == [
        ("1", "AWS"),
        ("1", "the environment (not verified)"),
    ]


def test_without_permission_the_placement_is_marked_as_the_environments_claim(machines: Machines) -> None:
    ran_on(machines.paths, "a")
    machines.account.refuse("DescribeInstances", "UnauthorizedOperation")
    (message,) = machines.record_placement()
    assert message.startswith("cannot verify the nodes with AWS:")
    report = machines.report()
    (row,) = node_rows(report)
    assert (row["Zone"], row["Placement group"]) == ("us-east-1a", "in one")
    assert row["Source"] == "the environment (not verified)"
    (section,) = report.sections
    assert section.text[-1].startswith("AWS could not be asked: ") and "DescribeInstances" in section.text[-1]


def test_without_an_environment_the_pods_facts_are_reported(machines: Machines) -> None:
    ran_on(machines.paths, "a", claim={"zone": "zone-a"})
    plan = json.loads(machines.paths.plan.read_text())
    machines.paths.plan.write_text(json.dumps({**plan, "outputs": None}))
    machines.record_placement()
    assert not machines.paths.nodes.exists() and machines.account.requests_of("DescribeInstances") == []
    (row,) = node_rows(machines.report())
    assert (row["Zone"], row["Type"], row["Source"]) == ("zone-a", "-", "its pods")


def test_nodes_of_one_run_in_several_zones_or_groups_are_warned_of(machines: Machines) -> None:
    ran_on(machines.paths, "a", "b", claim={**CLAIM, "zone": "us-east-1a or us-east-1b"})
    machines.has("a")
    machines.has("b", AvailabilityZone="us-east-1b", GroupName="spotmpi-lab-other")
    machines.record_placement()
    assert on_nodes(machines.report()) == [
        "Some runs had nodes in several zones (us-east-1a, us-east-1b): the network between those is slower.",
        "Some runs had nodes in several placement groups (spotmpi-lab-g5, spotmpi-lab-other): "
        "the network between those is slower.",
    ]


def test_a_study_reports_the_nodes_of_all_variants_and_those_of_micro_benchmarks_only(
    account: FakeAccount, runs: Path
) -> None:
    machines = Machines(account, RunPaths(runs / "none"))
    rates = {(name, 2): 10.0 for name in ("fp32 allreduce", "fp16 allreduce")}
    spec = SPEC.model_copy(update={"resources": SPEC.resources.model_copy(update={"gpu": 1})})
    more: dict[str, Any] = {"spec": spec.canonical(), "repeats": 1, "micro_benchmarks": True}
    study_report(runs, {"nodes": [2], "allreduce": ["fp32", "fp16"]}, rates, **more)
    for number, nodes in enumerate((("x", "b"), ("a", "b"), ("a", "c")), 1):  # the first is the allreduce benchmark
        paths = RunPaths(runs / f"run-{number}")
        ran_on(paths, *nodes)
        for name in nodes:
            machines.has(name)
        machines.record_placement(paths)
    report = gather([], runs, NOW)
    assert [(row["Nodes"], row["Variants"]) for row in node_rows(report)] == [("3", "all")]
    micro_warnings = [each for each in report.warnings if ALLREDUCE in each or "micro" in each]
    assert micro_warnings == [f"The micro-benchmarks also ran on x ({instance('x')}), which no trial used."]


def test_aws_is_queried_after_each_trial_and_its_failure_is_reported_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_account(environment: Any) -> Any:
        raise SpotmpiError("no credentials")

    monkeypatch.setattr("spotmpi.study.execution._account", no_account)
    trials = [dataclasses.replace(Recorded(), rate=rate) for rate in (10.0, 11.0)]
    every = [record(runs, f"run-{at}", SPEC, recorded) for at, recorded in enumerate(trials)]
    for paths in every:
        ran_on(paths, "a")
    messages: list[str] = []
    backend = SimpleNamespace(events=lambda run, follow: iter([Event(1.0, "succeeded")]), state=lambda run: run)
    runner = BackendRunner(cast(Backend, backend), runs, lambda event: None, messages.append)
    assert [str(runner.follow(paths.id)) for paths in every] == ["run-0", "run-1"]
    assert [json.loads(paths.nodes.read_text())["failure"] for paths in every] == ["no credentials"] * 2
    assert messages == ["cannot verify the nodes with AWS: no credentials"]
