"""An environment elsewhere than the default region of its user: every command calls AWS where the environment is."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import botocore
import pytest

from spotmpi.aws import eks, quotas, state_bucket
from spotmpi.aws.errors import CloudError, RegionNotEnabled
from spotmpi.aws.instances import instances
from spotmpi.aws.prices import group_prices
from spotmpi.aws.state_bucket import Bucket
from spotmpi.aws.zones import region_problem
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.cost import environment_cost
from spotmpi.environments.doctor import doctor
from spotmpi.environments.node_group_sizes import keep_warm
from spotmpi.environments.zones.comparison import compare_zones
from tests.cloud.account.ec2 import machine
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.fake_environment import SETTINGS, FakeEnvironment
from tests.cloud.fake_pulumi import FakePulumi
from tests.unit.core.test_environment import OUTPUTS

HERE = "us-west-2"
GROUPS = "  spotmpi:groups:\n    - {name: g4dn, type: g4dn.xlarge, max: 2}\n"
# Of all regions: their list, which any of them has, and the APIs with one endpoint.
ANYWHERE = {"DescribeRegions", "GetProducts", "GetCostAndUsage"}


def test_every_command_calls_aws_in_the_region_of_the_environment(lab: FakeEnvironment) -> None:
    account, outputs = lab.account, json.loads(json.dumps(OUTPUTS).replace("us-east-1", HERE))
    account.autoscaling.region = account.eks.region = HERE
    account.ec2.machines["i-00000000"] = machine()
    (lab.folder / "outputs").write_text(json.dumps(outputs))
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text(SETTINGS.replace("us-east-1", HERE) + GROUPS)
    there = environment.parse(outputs)

    doctor("lab", account, lambda command: "v3.200.0", None)
    assert lab.up() == there
    keep_warm(there, "g4dn", 1, timedelta(hours=1), account)
    environment_cost(there, 0.0, Target(runs_folder=lab.folder), account)
    assert lab.down() == []

    elsewhere = {operation for operation, region, _ in account.requests if region != HERE}
    assert elsewhere <= ANYWHERE
    assert {"DescribeAutoScalingGroups", "UpdateAutoScalingGroup", "DescribeLogGroups", "DescribeVolumes"} <= {
        operation for operation, _, _ in account.requests
    }


@pytest.mark.parametrize(
    ("command", "region", "problem"),
    [
        ("up", "US-EAST-1", "not an AWS region; write it like us-east-1"),
        ("down", "US-EAST-1", "not an AWS region; write it like us-east-1"),
        (
            "up",
            "us-gov-west-1",
            "of China, GovCloud or the like, whose ARNs and prices are others; use a region such as",
        ),
    ],
)
def test_a_region_that_can_have_no_environment_is_refused_before_anything_is_asked(
    lab: FakeEnvironment, command: str, region: str, problem: str
) -> None:
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text(SETTINGS.replace("us-east-1\n", f"{region}\n", 1))
    with pytest.raises(InputError, match=f"aws:region = '{region}': {problem}"):
        getattr(lab, command)()
    assert lab.actions == [] and lab.account.requests == []


def test_environments_can_be_in_the_regions_of_aws_s_own_partition_alone() -> None:
    data = Path(botocore.__file__).parent / "data" / "partitions.json"
    partitions = {each["id"]: list(each["regions"]) for each in json.loads(data.read_text())["partitions"]}
    refused = {key: [each for each in regions if region_problem(each)] for key, regions in partitions.items()}
    assert refused == {**partitions, "aws": ["aws-global"]} and {"aws-cn", "aws-us-gov"} < refused.keys()


DISABLED = "af-south-1"  # in the account of the tests
ENABLE = f"`aws account enable-region --region-name {DISABLED}`"


def in_disabled_region(lab: FakeEnvironment) -> Environment:
    """The environment in a region that was disabled after it was built."""
    outputs = json.loads(json.dumps(OUTPUTS).replace("us-east-1", DISABLED))
    (lab.folder / "outputs").write_text(json.dumps(outputs))
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text(SETTINGS.replace("us-east-1", DISABLED) + GROUPS)
    return environment.parse(outputs)


def price(lab: FakeEnvironment, there: Environment) -> object:
    return group_prices(there, there.node_groups, lab.account, datetime.now(UTC))


def cluster_of(there: Environment) -> eks.Cluster:
    cluster = eks.parse(there.cluster_arn)
    assert cluster is not None
    return cluster


COMMANDS: dict[str, Callable[[FakeEnvironment, Environment], object]] = {
    "up": lambda lab, there: lab.up(),
    "down": lambda lab, there: lab.down(),
    "scale": lambda lab, there: keep_warm(there, "g4dn", 1, timedelta(hours=1), lab.account),
    "cost": lambda lab, there: environment_cost(there, 0.0, Target(runs_folder=lab.folder), lab.account),
    "nodes": lambda lab, there: instances(lab.account, DISABLED, ["i-1"]),
    "zones": lambda lab, there: compare_zones(["g5.xlarge"], 1, [DISABLED], lab.account),
    "zones, by default": lambda lab, there: compare_zones(["g5.xlarge"], 1, [], FakeAccount(DISABLED)),
    "the bucket of the state": lambda lab, there: state_bucket.status(lab.account, DISABLED, Bucket("states", None)),
    "a cluster's address": lambda lab, there: eks.describe(lab.account, cluster_of(there)),
    "a run's price": price,
    "a run's quota": lambda lab, there: quotas.limit(lab.account, DISABLED, "L-3819A6DF"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_region_that_is_not_enabled_ends_each_command_with_the_remedy(lab: FakeEnvironment, command: str) -> None:
    """It answers as to wrong keys, by another code for each protocol, though the credentials are valid."""
    there = in_disabled_region(lab)
    with pytest.raises(SpotmpiError) as refused:
        COMMANDS[command](lab, there)
    message = str(refused.value)
    assert ENABLE in message and "invalid" not in message and "\n" not in message
    assert lab.actions == [] and lab.pulumi_commands() == []


PULUMI_CALLED = (
    "aws:iam:Role (spotmpi-lab-nodes): 1 error occurred: * operation error STS: GetCallerIdentity, https response "
    "error StatusCode: 403, RequestID: 6bd3b1c6-0b1a, api error InvalidClientTokenId: The security token included in "
    "the request is invalid."
)


@pytest.mark.parametrize("command", ["up", "destroy"])
def test_a_region_that_is_disabled_while_pulumi_works_is_named(lab: FakeEnvironment, command: str) -> None:
    in_disabled_region(lab)
    lab.account.ec2.enabled[DISABLED] = True
    lab.account.autoscaling.region = lab.account.eks.region = DISABLED
    if command == "destroy":
        lab.up(images=False)
    (lab.folder / f"{command}.failure").write_text(PULUMI_CALLED)
    run = FakePulumi.run

    def disable(pulumi: FakePulumi, stack: str, *arguments: str) -> None:
        if arguments[0] == command and "--preview-only" not in arguments:
            lab.account.ec2.enabled[DISABLED] = False
        run(pulumi, stack, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RegionNotEnabled, match=ENABLE):
        patch.setattr(FakePulumi, "run", disable)
        lab.up(images=False) if command == "up" else lab.down()


def test_keys_that_are_deleted_while_pulumi_works_are_named_with_the_region(lab: FakeEnvironment) -> None:
    (lab.folder / "up.failure").write_text(PULUMI_CALLED)
    with pytest.raises(SpotmpiError, match="AWS does not know these credentials in the stack's region: log in again"):
        lab.up(images=False)
    lab.account.refuse("GetCallerIdentity", "InvalidClientTokenId")
    with pytest.raises(SpotmpiError, match=r"AWS rejects these credentials in us-east-1 \(InvalidClientTokenId\)"):
        lab.up(images=False)


def test_doctor_names_a_region_that_is_not_enabled_once(lab: FakeEnvironment) -> None:
    in_disabled_region(lab)
    findings = doctor("lab", FakeAccount(DISABLED), lambda command: "v3.200.0", None)
    assert [each.check for each in findings if each.level == "error"] == ["region"]
    assert findings[1].message == f"{DISABLED} is not enabled in this account"
    assert findings[1].command == ENABLE.strip("`") and findings[-1].message.startswith("not checked without a region:")


def test_where_tokens_of_the_global_sts_are_not_valid_doctor_says_how_to_get_others(lab: FakeEnvironment) -> None:
    """The region is enabled, and rejects them all the same (aws-vault#512)."""
    in_disabled_region(lab)
    account = FakeAccount(DISABLED)
    account.script("DescribeRegions", Regions=[{"RegionName": DISABLED, "OptInStatus": "opted-in"}])
    findings = doctor("lab", account, lambda command: "v3.200.0", None)
    assert [each.check for each in findings if each.level == "error"] == ["credentials"]
    assert "log in again with AWS_STS_REGIONAL_ENDPOINTS=regional" in findings[0].message


def test_keys_that_no_region_accepts_are_reported_as_such(account: FakeAccount) -> None:
    account.refuse("GetCallerIdentity", "InvalidClientTokenId")
    with pytest.raises(CloudError, match=r"AWS rejects these credentials in af-south-1 \(InvalidClientTokenId\)"):
        account.account_id(DISABLED)
