"""Versions that EKS does not offer are refused before anything is touched, not by EKS in the middle of an update."""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.doctor import doctor
from spotmpi.environments.iam import policy
from spotmpi.environments.up import UpOptions, up
from tests.cloud.account.answers import Refusal
from tests.cloud.fake_environment import FakeEnvironment
from tests.unit.environments.test_changes import step

ADDON = "aws:eks/addon:Addon"
CLUSTER = "aws:eks/cluster:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
UP = "up --yes --skip-preview @lab"


def addon(version: str, op: str = "update") -> dict[str, Any]:
    return step(op, ADDON, "coredns", new={"addonName": "coredns", "addonVersion": version})


def node_group(release: str, ami_type: str = "AL2023_ARM_64_NVIDIA") -> dict[str, Any]:
    labels = {"spotmpi.dev/group": "g5g"}
    new = {"releaseVersion": release, "version": "1.36", "amiType": ami_type, "labels": labels}
    return step("update", NODE_GROUP, "g5g", old={"releaseVersion": "1.36.0-20261001"}, new=new)


@pytest.fixture
def built(live: FakeEnvironment) -> FakeEnvironment:
    live.account.eks.version = "1.35"
    return live


def announce(lab: FakeEnvironment, *steps: dict[str, Any]) -> None:
    (lab.folder / "steps").write_text(json.dumps(steps))


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        (
            [addon("v1.36.1-eksbuild.2")],
            "cluster.addon_versions.coredns v1.36.1-eksbuild.2, as EKS has v1.35.1-eksbuild.2, v1.34.1-eksbuild.2 for "
            "Kubernetes 1.35",
        ),
        (
            [step("create", CLUSTER, new={"version": "1.38"})],
            "cluster.version 1.38, as EKS offers 1.33, 1.34, 1.35, 1.36",
        ),
        (
            [node_group("1.36.2-20270101")],
            "ami_release of g5g 1.36.2-20270101, as EKS's newest for Kubernetes 1.36 is 1.36.1-20261110",
        ),
    ],
    ids=["add-on", "control plane", "AMI release"],
)
def test_a_version_that_eks_does_not_offer_is_refused_with_those_that_it_does(
    built: FakeEnvironment, steps: list[dict[str, Any]], refused: str
) -> None:
    announce(built, *steps)
    with pytest.raises(SpotmpiError) as error:
        built.up(images=False)
    remedy = "set versions that it offers, or undo the change"
    assert str(error.value) == f"lab was not changed: EKS would refuse {refused}: {remedy}"
    assert built.actions == [] and UP not in built.pulumi_commands()


def test_versions_that_eks_offers_are_set(built: FakeEnvironment) -> None:
    upgraded = step("update", CLUSTER, old={"version": "1.35"}, new={"version": "1.36"})
    announce(built, upgraded, addon("v1.36.1-eksbuild.2"), addon("v1.36.1-eksbuild.2", "create"))
    built.up(images=False)
    assert UP in built.pulumi_commands()


def test_without_the_permission_to_read_what_eks_offers_the_update_goes_on(built: FakeEnvironment) -> None:
    def refuse(region: str, request: Any) -> Any:
        raise Refusal("AccessDeniedException")

    built.account.answers["DescribeAddonVersions"] = refuse
    announce(built, addon("v9.9.9-eksbuild.1"))
    built.up(images=False)
    assert UP in built.pulumi_commands()
    assert any("the versions that EKS offers can't be read" in line for line in built.output)


ON_DEMAND = """  spotmpi:second_zone: us-east-1c
  spotmpi:groups:
    - {name: spot, type: g5.xlarge, max: 2}
    - {name: sure, type: g4dn.xlarge, max: 2, market: on-demand}
"""


@pytest.mark.parametrize("purpose", ["build", "up"])
def test_a_role_may_make_every_call_of_up_before_and_after_the_build(lab: FakeEnvironment, purpose: str) -> None:
    """What it may not read is not checked: a quota that is too small, or an AMI release that EKS lacks."""
    lab.write_stack(ON_DEMAND)
    account, options = lab.account, UpOptions(images=False)
    checked = replace(lab.dependencies, run_doctor=lambda stack, aws: doctor(stack, aws, lambda command: "v3", None))
    account.logs.groups.add("/aws/eks/spotmpi-lab/cluster")
    account.refuse("GetServiceQuota", "NoSuchResourceException")
    account.script("GetAWSDefaultServiceQuota", Quota={"Value": 64.0})
    up("lab", checked, options)
    account.eks.version = "1.36"
    announce(lab, addon("v1.36.1-eksbuild.2"), node_group("1.36.1-20261110"))
    up("lab", checked, options)

    calls = {each.replace("tagging:", "tag:") for each in account.rights}
    calls -= {"sts:GetCallerIdentity", "pricing:GetProducts"}  # needs no permission; a policy's length is limited
    assert {"ssm:GetParameter", "servicequotas:GetServiceQuota", "logs:DeleteLogGroup"} <= calls
    allowed = [action for each in policy(purpose)["Statement"] for action in each["Action"]]
    assert {call for call in calls if not any(fnmatch(call, action) for action in allowed)} == set()
