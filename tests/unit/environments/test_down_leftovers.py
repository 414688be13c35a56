"""What `spotmpi down` calls left: what its service says exists, and no log group that EKS makes again."""

from __future__ import annotations

import pytest

from spotmpi.environments.down import down
from spotmpi.environments.up import UpOptions, up
from tests.cloud.account.ec2 import machine
from tests.cloud.fake_environment import FakeEnvironment

GROUP = "/aws/eks/spotmpi-lab/cluster"
OURS = {"spotmpi:environment": "spotmpi-lab"}


@pytest.mark.parametrize("again", [1, 4])
def test_the_log_group_that_eks_recreates_is_deleted_again(lab: FakeEnvironment, again: int) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.account.logs.groups = {GROUP, "/aws/eks/spotmpi-lab-two/cluster"}
    lab.account.logs.recreations[GROUP] = again

    assert down("lab", lab.dependencies) == ()

    assert lab.account.logs.groups == {"/aws/eks/spotmpi-lab-two/cluster"}
    assert f"deleted log group {GROUP}, which EKS had recreated" in lab.output


def test_a_log_group_that_eks_keeps_recreating_is_listed_in_the_end(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.account.logs.groups, lab.account.logs.recreations[GROUP] = {GROUP}, 100

    assert [each.id for each in down("lab", lab.dependencies)] == [GROUP]
    assert lab.actions.count("wait") == 5

    lab.account.logs.recreations.clear()
    assert down("lab", lab.dependencies) == ()


def test_the_log_group_of_an_existing_cluster_is_not_deleted(lab: FakeEnvironment) -> None:
    lab.account.eks.version = "1.35"
    lab.account.logs.groups = {GROUP}

    assert [each.id for each in down("lab", lab.dependencies)] == [GROUP]


DELETED = [
    "ec2:us-east-1:1:instance/i-1",
    "ec2:us-east-1:1:natgateway/nat-1",
    "ec2:us-east-1:1:volume/vol-1",
    "ec2:us-east-1:1:subnet/subnet-1",
    "ec2:us-east-1:1:elastic-ip/eipalloc-1",
    "ec2:us-east-1:1:placement-group/spotmpi-lab-g4dn",
    "kms:us-east-1:1:key/key-1",
    "kms:us-east-1:1:key/key-2",
    "elasticfilesystem:us-east-1:1:file-system/fs-1",
    "elasticfilesystem:us-east-1:1:access-point/fsap-1",
    "ecr:us-east-1:1:repository/spotmpi-lab/chainermn",
    "eks:us-east-1:1:nodegroup/spotmpi-lab/g4dn/0123",
    "logs:us-east-1:1:log-group:/aws/eks/spotmpi-lab/audit",
]


def test_a_resource_that_only_the_tagging_api_lists_is_no_leftover(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.account.ec2.machines["i-1"] = machine("terminated", OURS)
    lab.account.ec2.gateways["nat-1"] = ("deleted", OURS)
    lab.account.kms.keys["key-1"] = "PendingDeletion"
    lab.account.tagging.resources = {f"arn:aws:{each}": "spotmpi-lab" for each in DELETED}

    assert down("lab", lab.dependencies) == ()


def test_a_tagged_resource_that_its_service_has_is_a_leftover(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.account.ec2.machines["i-1"] = machine("running", OURS)
    lab.account.ec2.gateways["nat-1"] = ("available", OURS)
    lab.account.kms.keys["key-2"] = "Enabled"
    lab.account.ec2.volumes["vol-1"] = OURS
    lab.account.eks.version = "1.35"
    lab.account.ec2.others |= {"subnet-1": OURS, "eipalloc-1": OURS}
    lab.account.tagging.resources = {f"arn:aws:{each}": "spotmpi-lab" for each in DELETED}

    leftovers = [(each.what, each.id.rpartition(":")[2]) for each in down("lab", lab.dependencies)]

    assert leftovers == [
        ("volumes", "vol-1"),
        ("tagged", "elastic-ip/eipalloc-1"),
        ("tagged", "instance/i-1"),
        ("tagged", "natgateway/nat-1"),
        ("tagged", "subnet/subnet-1"),
        ("tagged", "nodegroup/spotmpi-lab/g4dn/0123"),
        ("tagged", "key/key-2"),
    ]
