"""What `spotmpi down` calls left: what its service says exists, and no log group that EKS makes again."""

from __future__ import annotations

import pytest

from spotmpi.environments.down import down
from spotmpi.environments.leftovers import delete_unused_interfaces, find_leftovers
from spotmpi.environments.resource_inventory import read_inventory
from spotmpi.environments.resource_kinds import LEFT_OVER
from tests.cloud.account.answers import ACCOUNT
from tests.cloud.account.ec2 import machine
from tests.cloud.cluster.objects import of_kind
from tests.cloud.fake_environment import CNI, FakeEnvironment

GROUP = "/aws/eks/spotmpi-lab/cluster"
OURS = {"spotmpi:environment": "spotmpi-lab"}
LOAD_BALANCER = "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1"


def leave_one_of_each_kind(lab: FakeEnvironment) -> None:
    """Add to the account leftovers of the environment, resources of others, and deleted ones that AWS still lists."""
    lab.account.efs.file_systems["fs-1"] = {}
    lab.account.efs.mount_targets["fsmt-12345678"] = "fs-of-another-stack"
    lab.account.efs.file_systems["fs-2"] = {}
    lab.account.efs.vanishing.add("fs-1")
    lab.account.ec2.volumes["vol-1"] = {}
    lab.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    lab.account.kms.keys["key-1"] = "Enabled"
    lab.account.ecr.repositories |= {"spotmpi-lab/chainermn", "spotmpi-lab", "spotmpi-lab-two/chainermn"}
    lab.account.cloudformation.stacks = {
        "eksctl-spotmpi-lab-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab"},
        "eksctl-spotmpi-lab-two-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab-two"},
        "spotmpi-lab-two": {},
    }
    lab.account.tagging.resources = {
        "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1": "spotmpi-lab",
        "arn:aws:sns:us-east-1:1:theirs": "spotmpi-other",
    }
    lab.account.tagging.owned = {LOAD_BALANCER: "spotmpi-lab", LOAD_BALANCER.replace("/x/", "/y/"): "spotmpi-other"}


def test_one_untagged_resource_of_each_kind_is_found_by_name_or_recorded_id(lab: FakeEnvironment) -> None:
    csi = {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}
    lab.cluster.put(of_kind("PersistentVolume", "pvc-1", None, spec={"csi": csi}))
    lab.account.ec2.interfaces = {"eni-1": ("vpc-1", "in-use", CNI)}
    lab.up(images=False)
    leave_one_of_each_kind(lab)

    leftovers = down("lab", lab.dependencies)

    ids = {each.what: each.id for each in leftovers}
    assert len(ids) == len(leftovers)
    assert ids == {
        "CloudFormation stacks": "eksctl-spotmpi-lab-cluster",
        "file systems": "fs-1",
        "mount targets": "fsmt-12345678",
        "network interfaces": "eni-1",
        "volumes": "vol-1",
        "log groups": "/aws/eks/spotmpi-lab/late",
        "keys": "key-1",
        "image repositories": "spotmpi-lab/chainermn",
        "tagged": LOAD_BALANCER,
    }
    assert set(ids) - {"tagged"} == {kind.names for kind in LEFT_OVER}
    assert all(each.id in each.command for each in leftovers if each.what != "tagged")


def test_a_call_that_a_policy_denies_hides_no_other_leftovers_and_nothing_is_forgotten(live: FakeEnvironment) -> None:
    live.account.kms.keys["key-1"] = "Enabled"
    live.account.refuse("DescribeStacks", "AccessDenied")
    denied = "cloudformation:DescribeStacks in us-east-1 is not permitted: allow it in your IAM policy"
    found = {each.what: (each.id, each.command) for each in down("lab", live.dependencies)}
    assert found.keys() == {"CloudFormation stacks", "keys"} and found["CloudFormation stacks"] == (
        "not checked",
        denied,
    )
    assert live.dependencies.pulumi.state("lab") is not None
    live.account.refusals.clear()
    assert live.down() == [("keys", "key-1")]


@pytest.mark.parametrize("again", [1, 4])
def test_the_log_group_that_eks_recreates_is_deleted_again(live: FakeEnvironment, again: int) -> None:
    live.account.logs.groups = {GROUP, "/aws/eks/spotmpi-lab-two/cluster"}
    live.account.logs.recreations[GROUP] = again
    assert live.down() == []
    assert live.account.logs.groups == {"/aws/eks/spotmpi-lab-two/cluster"}
    assert f"deleted log group {GROUP}, which EKS had recreated" in live.output


def test_a_log_group_that_eks_keeps_recreating_is_listed_in_the_end(live: FakeEnvironment) -> None:
    live.account.logs.groups, live.account.logs.recreations[GROUP] = {GROUP}, 100
    assert live.down() == [("log groups", GROUP)]
    assert live.actions.count("wait") == 5
    live.account.logs.recreations.clear()
    assert live.down() == []


def test_the_log_group_of_an_existing_cluster_is_not_deleted(lab: FakeEnvironment) -> None:
    lab.account.eks.version, lab.account.logs.groups = "1.35", {GROUP}
    assert lab.down() == [("log groups", GROUP)]


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


def test_of_tagged_resources_only_those_that_their_service_has_are_leftovers(live: FakeEnvironment) -> None:
    account = live.account
    account.tagging.resources = {f"arn:aws:{each}": "spotmpi-lab" for each in DELETED}
    account.ec2.machines["i-1"] = machine("terminated", OURS)
    account.ec2.gateways["nat-1"] = ("deleted", OURS)
    account.kms.keys["key-1"] = "PendingDeletion"
    assert live.down() == []

    account.ec2.machines["i-1"] = machine("running", OURS)
    account.ec2.gateways["nat-1"] = ("available", OURS)
    account.kms.keys["key-2"] = "Enabled"
    account.ec2.volumes["vol-1"] = OURS
    account.eks.version = "1.35"
    account.ec2.others |= {"subnet-1": OURS, "eipalloc-1": OURS}
    assert [(kind, id.rpartition(":")[2]) for kind, id in live.down()] == [
        ("volumes", "vol-1"),
        ("tagged", "elastic-ip/eipalloc-1"),
        ("tagged", "instance/i-1"),
        ("tagged", "natgateway/nat-1"),
        ("tagged", "subnet/subnet-1"),
        ("tagged", "nodegroup/spotmpi-lab/g4dn/0123"),
        ("tagged", "key/key-2"),
    ]
    assert [each.command for each in find_leftovers(account, read_inventory("spotmpi-lab", "us-east-1", ACCOUNT))] == [
        "aws ec2 delete-volume --volume-id vol-1 --region us-east-1",
        "aws ec2 release-address --allocation-id eipalloc-1 --region us-east-1",
        "aws ec2 terminate-instances --instance-ids i-1 --region us-east-1",
        "aws ec2 delete-nat-gateway --nat-gateway-id nat-1 --region us-east-1",
        "aws ec2 delete-subnet --subnet-id subnet-1 --region us-east-1",
        "see the console of that service",
        "aws kms schedule-key-deletion --pending-window-in-days 7 --key-id key-2 --region us-east-1",
    ]


def test_more_interfaces_and_volumes_than_one_call_may_name_are_found(lab: FakeEnvironment) -> None:
    """The recorded ones that outlived their network: those of some hundred nodes."""
    lab.up(images=False)
    recorded = {f"eni-{number:04}": ("vpc-1", "in-use", CNI) for number in range(450)}
    lab.account.ec2.interfaces = dict(recorded)
    volumes = [f"vol-{number:04}" for number in range(250)]
    disks = {id: {"driver": "ebs.csi.aws.com", "volumeHandle": id} for id in volumes}
    lab.cluster.put(*(of_kind("PersistentVolume", f"pvc-{id}", None, spec={"csi": disk}) for id, disk in disks.items()))
    lab.account.ec2.volumes = {id: {} for id in volumes}

    found = lab.down()

    assert sorted(id for what, id in found if what == "network interfaces") == sorted(recorded)
    assert sorted(id for what, id in found if what == "volumes") == volumes


def test_an_interface_that_is_attached_after_it_was_listed_is_left_alone(live: FakeEnvironment) -> None:
    live.account.ec2.interfaces = {f"eni-{number}": ("vpc-1", "available", CNI) for number in range(3)}
    live.account.ec2.networks["vpc-1"] = OURS
    inventory = read_inventory("spotmpi-lab", "us-east-1", ACCOUNT)

    def attach() -> None:
        if live.account.requests[-1][0] == "DeleteNetworkInterface":
            live.account.ec2.interfaces["eni-1"] = ("vpc-1", "in-use", CNI)

    live.account.before_answer = attach
    assert delete_unused_interfaces(live.account, inventory) == ["eni-0", "eni-2"]
    assert set(live.account.ec2.interfaces) == {"eni-1"}


def test_backups_outlive_their_file_system_and_are_named_but_are_no_leftovers(live: FakeEnvironment) -> None:
    """AWS Backup copies the environment's tag to them, by which `down` took them for leftovers for 35 days."""
    live.account.backup.back_up("fs-1", "spotmpi-lab", days=3)
    live.account.backup.back_up("fs-of-another", "spotmpi-lab", days=1)

    assert live.down() == []

    stays = "except 3 recovery points in AWS Backup, billed by the GB until they expire"
    assert live.actions[0] == f"Destroy spotmpi-lab and ALL DATA on its storage {stays}?"
    arn = f"arn:aws:elasticfilesystem:us-east-1:{ACCOUNT}:file-system/fs-1"
    command = f"aws backup list-recovery-points-by-resource --resource-arn {arn} --region us-east-1"
    assert (
        "not deleted, and billed by the GB until they expire: 3 recovery points of fs-1 in AWS Backup, "
        f"which `{command}` lists; docs/cloud.md#backups says how to restore or delete them"
    ) in live.output
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}


def test_the_backups_of_storage_that_is_kept_stay_with_it(lab: FakeEnvironment) -> None:
    lab.up_with_data_stack()
    lab.account.backup.back_up("fs-kept", "spotmpi-lab-data", days=2)
    lab.forget()

    assert lab.down() == []
    assert lab.actions[0] == "Destroy spotmpi-lab?" and not any("recovery point" in line for line in lab.output)

    assert lab.down("spotmpi-lab") == []
    assert "except 2 recovery points in AWS Backup" in lab.actions[-1]
    assert any("2 recovery points of fs-kept in AWS Backup" in line for line in lab.output)


def test_backups_that_may_not_be_listed_do_not_block_down(live: FakeEnvironment) -> None:
    live.account.refuse("ListRecoveryPointsByResource", "AccessDeniedException")
    assert live.down() == []
    assert live.actions[0] == "Destroy spotmpi-lab and ALL DATA on its storage?"
    refused = "backup:ListRecoveryPointsByResource in us-east-1 is not permitted: allow it in your IAM policy"
    assert f"backups can't be listed: {refused}" in live.output
