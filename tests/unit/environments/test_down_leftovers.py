"""What `spotmpi down` calls left: what its service says exists, and no log group that EKS makes again."""

from __future__ import annotations

import pytest

from spotmpi.environments.down import down
from spotmpi.environments.up import UpOptions, up
from tests.cloud.environment_life import Life

GROUP = "/aws/eks/spotmpi-lab/cluster"
OURS = {"spotmpi:environment": "spotmpi-lab"}


@pytest.mark.parametrize("again", [1, 4])
def test_the_log_group_that_eks_makes_again_is_deleted_again(life: Life, again: int) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.stock.logs = {GROUP, "/aws/eks/spotmpi-lab-two/cluster"}
    life.stock.late_logs[GROUP] = again

    assert down("lab", life.hands) == ()

    assert life.stock.logs == {"/aws/eks/spotmpi-lab-two/cluster"}
    assert f"deleted log group {GROUP}, which EKS had made again" in life.said


def test_a_log_group_that_eks_makes_again_and_again_is_listed_in_the_end(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.stock.logs, life.stock.late_logs[GROUP] = {GROUP}, 100

    assert [each.id for each in down("lab", life.hands)] == [GROUP]
    assert life.did.count("wait") == 5

    life.stock.late_logs.clear()
    assert down("lab", life.hands) == ()


def test_the_log_group_of_a_cluster_that_exists_is_left_alone(life: Life) -> None:
    life.stock.clusters.add("spotmpi-lab")
    life.stock.logs = {GROUP}

    assert [each.id for each in down("lab", life.hands)] == [GROUP]


GONE = [
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


def test_what_only_the_tagging_api_still_lists_is_nothing_left(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.stock.machines["i-1"] = ("terminated", OURS)
    life.stock.gateways["nat-1"] = ("deleted", OURS)
    life.stock.keys["key-1"] = "PendingDeletion"
    life.stock.tagged = {f"arn:aws:{each}": "spotmpi-lab" for each in GONE}

    assert down("lab", life.hands) == ()


def test_what_the_tagging_api_lists_and_its_service_has_is_left(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.stock.machines["i-1"] = ("running", OURS)
    life.stock.gateways["nat-1"] = ("available", OURS)
    life.stock.keys["key-2"] = "Enabled"
    life.stock.volumes["vol-1"] = OURS
    life.stock.clusters.add("spotmpi-lab")
    life.stock.others |= {"subnet-1": OURS, "eipalloc-1": OURS}
    life.stock.tagged = {f"arn:aws:{each}": "spotmpi-lab" for each in GONE}

    left = [(each.what, each.id.rpartition(":")[2]) for each in down("lab", life.hands)]

    assert left == [
        ("volumes", "vol-1"),
        ("tagged", "elastic-ip/eipalloc-1"),
        ("tagged", "instance/i-1"),
        ("tagged", "natgateway/nat-1"),
        ("tagged", "subnet/subnet-1"),
        ("tagged", "nodegroup/spotmpi-lab/g4dn/0123"),
        ("tagged", "key/key-2"),
    ]
