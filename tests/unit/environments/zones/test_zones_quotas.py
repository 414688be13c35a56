"""Quotas in `spotmpi zones`: pending requests, new ones, families; and the cost of an idle environment."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from infra import exports, launch
from infra.instance_types import catalog
from infra.settings import Settings
from spotmpi.aws import prices
from spotmpi.aws.errors import CloudError
from spotmpi.aws.quotas import quota_code
from spotmpi.core import names
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import InputError
from spotmpi.environments.stack_file import read_stack
from spotmpi.environments.zones.comparison import compare_zones, request_quota
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW, quota_request
from tests.unit.environments.zones.comparing import BOTH, compare


def test_pending_requests_are_part_of_the_comparison_and_decided_ones_not(account: FakeAccount) -> None:
    account.quotas.requests = [
        quota_request("L-3819A6DF", 64, NOW - timedelta(days=3)),
        quota_request("L-3819A6DF", 32, NOW - timedelta(days=30), "APPROVED"),
        quota_request("L-3819A6DF", 96, NOW - timedelta(days=5), "CASE_OPENED"),
    ]

    comparison = compare(account)

    assert [(each.vcpus, each.status) for each in comparison.increases] == [(96, "CASE_OPENED"), (64, "PENDING")]


def test_a_request_is_for_running_and_needed_vcpus_together(account: FakeAccount) -> None:
    account.quotas.values["L-3819A6DF"] = 8.0
    account.ec2.spot_types["us-east-1"] = ["g5.xlarge"]
    requested = request_quota(compare(account).rows[0], account)
    assert requested is not None and requested.vcpus == 36
    (request,) = account.requests_of("RequestServiceQuotaIncrease")
    assert request == {"ServiceCode": "ec2", "QuotaCode": "L-3819A6DF", "DesiredValue": 36.0}


def test_nothing_is_requested_where_the_quota_suffices(account: FakeAccount) -> None:
    assert request_quota(compare(account).rows[0], account) is None
    assert account.requests_of("RequestServiceQuotaIncrease") == []


@pytest.mark.parametrize(
    ("operation", "code", "message"),
    [
        ("RequestServiceQuotaIncrease", "ResourceAlreadyExistsException", "is already open; AWS accepts one at a time"),
        ("GetServiceQuota", "AccessDeniedException", "quota: not permitted"),
    ],
    ids=["already open", "unknown quota"],
)
def test_a_request_that_cannot_be_made_is_a_plain_error(
    account: FakeAccount, operation: str, code: str, message: str
) -> None:
    account.quotas.values["L-3819A6DF"] = 0.0
    account.refuse(operation, code)
    with pytest.raises(CloudError, match=message):
        request_quota(compare(account).rows[0], account)


def test_a_quota_that_was_never_touched_has_its_default(account: FakeAccount) -> None:
    account.refuse("GetServiceQuota", "NoSuchResourceException")
    account.script("GetAWSDefaultServiceQuota", Quota={"Value": 5.0})
    assert compare(account).rows[0].quota == 5


@pytest.mark.parametrize(
    ("code", "types"),
    [
        ("L-3819A6DF", "g5.xlarge g4dn.xlarge g6e.12xlarge vt1.3xlarge"),
        ("L-7212CCBC", "p2.xlarge p3dn.24xlarge p4d.24xlarge"),
        ("L-C4BD4855", "p5.48xlarge"),
        ("L-34B43A08", "c6i.xlarge t3.medium im4gn.large"),
        (None, "inf2.xlarge hpc7a.12xlarge mac1.metal trn1.2xlarge dl1.24xlarge x2idn.16xlarge"),
    ],
)
def test_each_family_counts_against_its_own_quota(code: str | None, types: str) -> None:
    assert {name: quota_code(name) for name in types.split()} == dict.fromkeys(types.split(), code)


def test_a_family_without_known_quota_is_compared_without_it(account: FakeAccount) -> None:
    account.ec2.types["trn1.2xlarge"], account.ec2.spot_prices["trn1.2xlarge"] = (8, 0, True, False), 0.4
    comparison = compare(account, "trn1.2xlarge")
    assert comparison.rows[0].quota is None and comparison.rows[0].short is None
    with pytest.raises(InputError, match="the spot quota of this family is unknown"):
        request_quota(comparison.rows[0], account)


def idle(settings: Settings) -> float:
    """$/h of the resources that the program builds for these settings, storage excepted, at list prices."""
    system, private = settings.cluster.system, settings.network.private
    nodes = system.nodes * (0.0416 + system.disk_gib * 0.08 / 730)
    return 0.10 + nodes + (0.045 + 0.005 if private else system.nodes * 0.005)


def test_idle_costs_are_those_of_the_default_settings() -> None:
    settings = Settings(stack="x", region="us-east-1", zones=("us-east-1a",))
    price = prices.environment_price(8, None, None)
    assert price.idle == pytest.approx(idle(settings)) and price.busy is None
    assert settings.cluster.system.type == prices.SYSTEM_TYPE
    assert settings.cluster.version == prices.KUBERNETES


def test_a_control_plane_in_extended_support_costs_what_aws_bills_for_it(account: FakeAccount, tmp_path: Path) -> None:
    """As in the program: $0.60 in place of $0.10, whatever else the environment has."""
    (tmp_path / "Pulumi.x.yaml").write_text("config:\n  spotmpi:cluster: {version: '1.33'}\n")
    design = read_stack("x", tmp_path).design
    row = compare_zones(["g5.xlarge"], 8, (), account, NOW, design).rows[0]
    before = compare(account).rows[0]
    assert row.idle is not None and row.busy is not None and before.idle is not None and before.busy is not None
    assert row.idle - before.idle == pytest.approx(0.5) and row.busy - before.busy == pytest.approx(0.5)
    assert (row.extended_support, before.extended_support) == ("1.33", None)


def test_without_the_permission_to_ask_for_support_the_price_is_that_of_standard_support(account: FakeAccount) -> None:
    account.refuse("DescribeClusterVersions", "AccessDeniedException")
    found = compare_zones(["g5.xlarge"], 8, (), account, NOW, prices.Design(kubernetes="1.33"))
    assert found.rows[0].idle == compare(account).rows[0].idle
    assert any("eks:DescribeClusterVersions in us-east-1 is not permitted" in each for each in found.unknown)


def test_the_price_of_other_system_nodes_is_unknown_where_it_can_not_be_asked_for(account: FakeAccount) -> None:
    design = prices.Design(system_type="t3.xlarge")
    found = compare_zones(["g5.xlarge"], 8, (), account, NOW, design)
    assert found.rows[0].idle == pytest.approx(0.1 + 2 * (0.1664 + 0.005 + 30 * 0.08 / 730))
    account.refuse("GetProducts", "AccessDeniedException")
    first = compare_zones(["g5.xlarge"], 8, (), account, NOW, design).rows[0]
    assert first.idle is first.busy is None and first.unknown["idle"] == "not permitted"
    assert compare(account).rows[0].idle == pytest.approx(0.1 + 2 * (0.0416 + 0.005 + 30 * 0.08 / 730))


def test_the_price_of_system_nodes_in_one_region_is_not_that_of_another(account: FakeAccount) -> None:
    account.refuse("GetProducts", "AccessDeniedException")
    rows = {row.region: row for row in compare(account, regions=BOTH).rows}
    assert rows["us-east-1"].idle is not None
    assert rows["us-west-2"].idle is rows["us-west-2"].busy is None
    assert rows["us-west-2"].unknown["idle"] == "not permitted"


@pytest.mark.parametrize("stack", ["lab", "g5", "p3", "cpu"])
def test_idle_costs_of_a_stack_are_those_of_its_own_settings(stack: str) -> None:
    """A private network has a NAT gateway, and one address instead of one for each node."""
    file = yaml.safe_load((names.PROJECT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    values = {key.removeprefix("spotmpi:"): value for key, value in file.items() if key.startswith("spotmpi:")}
    settings = Settings(stack=stack, region="us-east-1", **{"zones": ["us-east-1a"], **values})
    design = read_stack(stack, names.PROJECT / "stacks").design
    price = prices.environment_price(1, 0.4, None, design)
    assert price.idle == pytest.approx(idle(settings))
    address = 0 if settings.network.private else 0.005
    disk = max(group.disk_gib for group in settings.groups) * 0.08 / 730
    assert price.idle is not None and price.busy == pytest.approx(price.idle + 0.4 + disk + address)


@pytest.mark.parametrize(
    ("machine", "more"),
    [
        *(("p3.2xlarge", {}), ("g5.xlarge", {}), ("c6i.xlarge", {})),
        *(("g5.xlarge", {"local_disks": False}), ("c6i.xlarge", {"disk_throughput": 1000})),
    ],
)
def test_the_disk_of_a_node_costs_what_its_throughput_does(
    machine: str, more: dict[str, object], tmp_path: Path
) -> None:
    """GPUs that keep their images on the root disk get a faster one, which is billed by the hour."""
    group = {"name": "g", "type": machine, "max": 1, "market": "on-demand", **more}
    settings = Settings(stack="x", region="us-east-1", zones=("us-east-1a",), groups=[group])
    text = f"config:\n  aws:region: us-east-1\n  spotmpi:groups: {json.dumps([group])}\n"
    (tmp_path / "Pulumi.x.yaml").write_text(text)
    kind, design = catalog()[machine], read_stack("x", tmp_path).design
    throughput = design.throughput(kind.gpus, kind.local_disk_gb > 0)
    price = prices.environment_price(1, 0.4, None, design, throughput)
    built = settings.groups[0].root_disk_throughput(kind)
    faster = max(0, built - 125) * 0.04 + (launch.disk_iops(built) - 3000) * 0.005
    extras = (settings.groups[0].disk_gib * 0.08 + faster) / 730 + 0.005
    assert price.busy == pytest.approx(idle(settings) + 0.4 + extras)
    exported = NodeGroup.model_validate(exports.node_group(settings.zone_groups[0], False))
    assert prices.node_extras(exported) == pytest.approx(extras)


def test_zones_knows_which_types_have_disks_of_their_own(account: FakeAccount) -> None:
    def busy() -> float:
        return float(compare(account, "g5.xlarge").rows[0].busy or 0)

    before, nodes = busy(), compare(account, "g5.xlarge").nodes
    account.ec2.local_disks.clear()
    assert busy() - before == pytest.approx(nodes * (500 - 125) * 0.04 / 730)
