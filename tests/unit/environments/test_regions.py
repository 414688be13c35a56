"""An environment elsewhere than the default region of its user: every command calls AWS where the environment is."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.errors import InputError
from spotmpi.environments.cost import environment_cost
from spotmpi.environments.doctor import doctor
from spotmpi.environments.node_group_sizes import keep_warm
from tests.cloud.account.ec2 import machine
from tests.cloud.fake_environment import SETTINGS, FakeEnvironment
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


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_is_no_name_of_a_region_is_refused_before_anything_is_asked(lab: FakeEnvironment, command: str) -> None:
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text(SETTINGS.replace("us-east-1\n", "US-EAST-1\n", 1))
    with pytest.raises(InputError, match="aws:region = 'US-EAST-1': not an AWS region; write it like us-east-1"):
        getattr(lab, command)()
    assert lab.actions == [] and lab.account.requests == []
