"""`spotmpi up` where AWS has no longer, or could not create, what Pulumi's state has; with a fake Pulumi."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.iam import policy
from tests.cloud.account.eks import node_group
from tests.cloud.fake_environment import FIRST, FakeEnvironment


def _hold(lab: FakeEnvironment, **deployment: Any) -> None:
    """Let Pulumi's state have this, in the form of `pulumi stack export`."""
    (lab.folder / "lab.held").write_text(json.dumps({"deployment": {"resources": [], **deployment}}))


def _urn(kind: str, name: str) -> str:
    return f"urn:pulumi:lab::spotmpi::spotmpi:cluster:Cluster${kind}::{name}"


def test_what_a_killed_update_was_creating_is_named_instead_of_being_created_once_more(lab: FakeEnvironment) -> None:
    """Pulumi only warns of it (pkg/resource/deploy/deployment.go), and what exists bills on and is in no state."""
    group = "aws:eks/nodeGroup:NodeGroup"
    operation = {"resource": {"urn": _urn(group, "spotmpi-lab-system"), "type": group}, "type": "creating"}
    _hold(lab, pending_operations=[operation, {**operation, "type": "updating"}])
    with pytest.raises(SpotmpiError) as refused:
        lab.up()
    assert str(refused.value) == (
        f"an earlier update of lab was killed while it created {group} spotmpi-lab-system: they may exist and bill, "
        "and Pulumi does not know them: delete them in AWS if they do, then `pulumi refresh --clear-pending-creates "
        "--yes --stack lab`, then repeat the command"
    )
    assert lab.pulumi_commands() == FIRST[:1] and lab.actions == []
    assert lab.down() == [] and str(refused.value) in lab.output
    release = {"resource": {"urn": _urn("kubernetes:helm.sh/v3:Release", "kueue")}, "type": "creating"}
    _hold(lab, pending_operations=[operation, release])
    with pytest.raises(SpotmpiError, match="delete them in AWS and in the cluster if they do, then"):
        lab.up()


ROOT = {"type": "pulumi:pulumi:Stack", "urn": "urn:pulumi:lab::spotmpi::pulumi:pulumi:Stack::spotmpi-lab"}


@pytest.mark.parametrize("at_work", ["up", "down"])
def test_an_update_that_still_runs_is_not_taken_for_a_killed_one_nor_what_it_deletes_for_deleted(
    lab: FakeEnvironment, at_work: str
) -> None:
    """Its state has what it is at work on."""
    operation = {"resource": {"urn": _urn("aws:ec2/vpc:Vpc", "spotmpi-lab")}, "type": "creating"}
    network = {"type": "aws:ec2/vpc:Vpc", "id": "vpc-1", "urn": _urn("aws:ec2/vpc:Vpc", "spotmpi-lab")}
    if at_work == "up":
        _hold(lab, resources=[ROOT], pending_operations=[operation])
    else:
        _hold(lab, resources=[ROOT, network])
    (lab.folder / "lab.lock").write_text("ann@laptop (pid 7) at 2026-11-27T02:00:00Z")
    with pytest.raises(SpotmpiError, match=r"stack lab is locked by another update, of ann@laptop \(pid 7\) at"):
        lab.up()
    with pytest.raises(SpotmpiError, match=r"stack lab is locked by another update, of ann@laptop \(pid 7\) at"):
        lab.down()
    assert not any("killed" in line for line in lab.output)


STORAGE = [
    {"type": f"aws:efs/{kind[0].lower()}{kind[1:]}:{kind}", "id": id, "urn": _urn(f"aws:efs/{kind}", id)}
    for kind, id in (("FileSystem", "fs-00000001"), ("MountTarget", "fsmt-00000001"), ("AccessPoint", "fsap-00000001"))
]
IN_CLUSTER = [
    {"type": kind, "id": f"spotmpi-lab:{name}", "urn": _urn(kind, name)}
    for kind, name in (
        ("aws:eks/nodeGroup:NodeGroup", "spotmpi-lab-g4dn"),
        ("aws:eks/addon:Addon", "coredns"),
        ("aws:eks/accessEntry:AccessEntry", "arn:aws:iam::123456789012:role/ann"),
    )
]


def test_what_somebody_deleted_in_aws_is_built_anew_and_pulumi_would_not_notice(lab: FakeEnvironment) -> None:
    group = IN_CLUSTER[0]["urn"]
    tag = {"type": "aws:autoscaling/tag:Tag", "id": "eks-1,a", "urn": _urn("aws:autoscaling/tag:Tag", "a")}
    job = {"type": "kubernetes:core/v1:Secret", "id": "a", "urn": _urn("kubernetes:core/v1:Secret", "a")}
    dependents = [{**each, "dependencies": [group]} for each in (tag, job)]
    _hold(lab, resources=[*STORAGE, *IN_CLUSTER, *dependents])
    lab.account.efs.file_systems, lab.account.efs.access_points = {"fs-00000001": {}}, {"fsap-00000001"}
    lab.account.eks.addons = {"coredns": "v1"}
    lab.up(images=False)
    role = "arn:aws:iam::123456789012:role/ann"
    deleted = f"mount target fsmt-00000001, node group spotmpi-lab-g4dn, access of {role}"
    assert f"to be built anew: deleted outside of Pulumi: {deleted}" in lab.output
    targets = " ".join(f"--target {each['urn']}" for each in (STORAGE[1], IN_CLUSTER[0], IN_CLUSTER[2], tag))
    assert lab.pulumi_commands()[:3] == [FIRST[0], f"refresh --yes --skip-preview {targets} @lab", FIRST[1]]


@pytest.mark.parametrize(
    ("kind", "id", "name"),
    [("aws:eks/cluster:Cluster", "spotmpi-lab", "cluster"), ("aws:ec2/vpc:Vpc", "vpc-1", "VPC")],
)
def test_an_environment_without_its_cluster_or_network_is_taken_down_first(
    lab: FakeEnvironment, kind: str, id: str, name: str
) -> None:
    _hold(lab, resources=[{"type": kind, "id": id, "urn": _urn(kind, id)}, *IN_CLUSTER])
    with pytest.raises(SpotmpiError, match=f"deleted outside of Pulumi: {name} {id}: `spotmpi down lab` deletes the"):
        lab.up()
    assert lab.pulumi_commands() == FIRST[:1] and lab.actions == []
    assert lab.down() == []


def test_what_pulumi_only_reads_or_aws_may_not_be_asked_for_is_left_alone(lab: FakeEnvironment) -> None:
    system, target, _ = STORAGE
    _hold(lab, resources=[{**system, "external": True}, target])
    lab.account.refuse("DescribeMountTargets", "AccessDenied")
    lab.up(images=False)
    denied = "elasticfilesystem:DescribeMountTargets in us-east-1 is not permitted: allow it in your IAM policy"
    assert f"whether parts of lab were deleted can't be checked: {denied}" in lab.output
    assert not any(line.startswith("refresh") for line in lab.pulumi_commands())


GROUP, ADDON, _ = IN_CLUSTER
NAME = "spotmpi-lab-g4dn"


@pytest.fixture
def built(lab: FakeEnvironment) -> FakeEnvironment:
    """With a node group and an add-on, both usable."""
    _hold(lab, resources=[ROOT, GROUP, ADDON])
    lab.account.eks.groups = {NAME: node_group("g4dn", "1.36.1-20261110")}
    lab.account.eks.addons = {"coredns": "v1"}
    return lab


def refreshed(lab: FakeEnvironment, *urns: str) -> list[str]:
    """The commands until the preview, of which the second lets Pulumi forget what is gone."""
    check = f"refresh --yes --skip-preview --target {ROOT['urn']} @lab"
    targets = " ".join(f"--target {urn}" for urn in urns)
    return [FIRST[0], check, f"refresh --yes --skip-preview {targets} @lab", FIRST[1]]


@pytest.mark.parametrize("status", ["CREATE_FAILED", "DELETE_FAILED"])
def test_a_node_group_and_an_addon_that_failed_are_deleted_and_built_anew(built: FakeEnvironment, status: str) -> None:
    eks = built.account.eks
    eks.groups[NAME]["status"] = eks.addon_status["coredns"] = status
    built.up(images=False)
    question = f"Delete node group {NAME}, add-on coredns, which failed in AWS, and build anew?"
    assert built.actions[:2] == [question, "wait"]
    assert eks.groups == {} and eks.addons == {}
    assert f"to be built anew: failed in AWS: node group {NAME}, add-on coredns" in built.output
    assert built.pulumi_commands()[:4] == refreshed(built, GROUP["urn"], ADDON["urn"])


def test_what_failed_is_not_deleted_without_a_confirmation(built: FakeEnvironment) -> None:
    built.account.eks.groups[NAME]["status"] = "CREATE_FAILED"
    built.confirmations = [False]
    with pytest.raises(SpotmpiError, match=f"lab was not changed: failed in AWS: node group {NAME}: delete that, then"):
        built.up(images=False)
    assert built.account.eks.groups[NAME]["status"] == "CREATE_FAILED"


def test_what_aws_still_deletes_is_waited_for_and_built_anew_without_a_question(built: FakeEnvironment) -> None:
    built.account.eks.groups[NAME]["status"] = "DELETING"
    built.up(images=False)
    assert f"to be built anew: being deleted by AWS: node group {NAME}" in built.output
    assert not any(action.startswith("Delete") for action in built.actions)
    assert built.pulumi_commands()[:4] == refreshed(built, GROUP["urn"])


def test_a_deletion_that_fails_is_named_at_once(built: FakeEnvironment) -> None:
    """The statuses of a node group in EKS's API reference; it was waited for until the limit of half an hour."""
    statuses = iter(["CREATE_FAILED", "CREATE_FAILED", "DELETING", "DELETING", "DELETE_FAILED"])
    built.account.answers["DescribeNodegroup"] = lambda *request: {"nodegroup": {"status": next(statuses)}}
    with pytest.raises(SpotmpiError, match=f"AWS could not delete node group {NAME}: its health issues in the console"):
        built.up(images=False)
    assert built.actions[1:] == ["wait"] * 3


def test_a_deletion_that_does_not_end_is_named(built: FakeEnvironment) -> None:
    built.account.script("DescribeNodegroup", nodegroup={"status": "DELETING"})
    with pytest.raises(SpotmpiError, match=f"not deleted by AWS after 1800 s: node group {NAME}: look in the console"):
        built.up(images=False)
    assert built.actions == ["wait"] * 180


@pytest.mark.parametrize(
    ("status", "words"), [("FAILED", "failed in AWS"), ("DELETING", "being deleted by AWS")], ids=["failed", "deleting"]
)
def test_a_cluster_that_is_of_no_use_is_taken_down_first(built: FakeEnvironment, status: str, words: str) -> None:
    urn = "urn:pulumi:lab::spotmpi::aws:eks/cluster:Cluster::spotmpi-lab"
    _hold(built, resources=[ROOT, {"type": "aws:eks/cluster:Cluster", "id": "spotmpi-lab", "urn": urn}, GROUP])
    built.account.eks.version, built.account.eks.status = "1.36", status
    with pytest.raises(
        SpotmpiError, match=f"lab was not changed: {words}: cluster spotmpi-lab: `spotmpi down lab` del"
    ):
        built.up(images=False)


def test_a_mount_target_that_is_not_usable_yet_is_left_to_aws(built: FakeEnvironment) -> None:
    _hold(built, resources=[ROOT, STORAGE[1]])
    target = {"MountTargetId": STORAGE[1]["id"], "LifeCycleState": "creating"}
    built.account.script("DescribeMountTargets", MountTargets=[target])
    built.up(images=False)
    assert built.pulumi_commands()[:2] == FIRST[:2]


# By type: the id, the words, the state in AWS, and the right that its deletion needs.
FAILED = {
    "aws:ec2/natGateway:NatGateway": ("nat-1", "NAT gateway", "failed", "ec2:DeleteNatGateway"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("vpce-1", "network endpoint", "rejected", "ec2:DeleteVpcEndpoints"),
    "aws:efs/mountTarget:MountTarget": (
        "fsmt-12345678",
        "mount target",
        "error",
        "elasticfilesystem:DeleteMountTarget",
    ),
    "aws:efs/accessPoint:AccessPoint": (
        "fsap-12345678",
        "access point",
        "error",
        "elasticfilesystem:DeleteAccessPoint",
    ),
}


@pytest.mark.parametrize("kind", FAILED)
def test_a_part_without_data_that_failed_after_its_creation_is_deleted_and_built_anew(
    built: FakeEnvironment, kind: str
) -> None:
    """The next `pulumi up` would take it for complete: nodes without a way out, or pods that never mount."""
    id, words, state, right = FAILED[kind]
    _hold(built, resources=[ROOT, {"type": kind, "id": id, "urn": _urn(kind, id)}])
    ec2, efs = built.account.ec2, built.account.efs
    ec2.gateways, ec2.others = {"nat-1": (state, {})}, {"vpce-1": {}}
    efs.mount_targets, efs.access_points = {"fsmt-12345678": "fs-1"}, {"fsap-12345678"}
    efs.states[id] = ec2.states[id] = state
    built.up(images=False)
    assert built.actions[0] == f"Delete {words} {id}, which failed in AWS, and build anew?"
    assert f"to be built anew: failed in AWS: {words} {id}" in built.output
    assert built.pulumi_commands()[:4] == refreshed(built, _urn(kind, id))
    for name in ("up", "build"):
        allowed = json.dumps(policy(name))
        assert f'"{right}"' in allowed and right in built.account.rights


def test_a_nat_gateway_that_failed_an_hour_ago_is_gone_and_built_anew(built: FakeEnvironment) -> None:
    """AWS deletes it by itself (Amazon VPC User Guide, Troubleshoot NAT gateways), and nothing else would notice."""
    kind = "aws:ec2/natGateway:NatGateway"
    _hold(built, resources=[ROOT, {"type": kind, "id": "nat-1", "urn": _urn(kind, "nat-1")}])
    built.up(images=False)
    assert "to be built anew: deleted outside of Pulumi: NAT gateway nat-1" in built.output
