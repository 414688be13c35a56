"""Each kind of resource whose deletion AWS refuses once: `down` says which and why in a line, the next one goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.down import down
from tests.engine.built_stack import BuiltStack
from tests.engine.refusals import ALLOWED, INTERNAL, THROTTLED, WAIT, RefusedCall, denied, token_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(900),
    pytest.mark.nightly("2 to 4 min for each part; by day a file system's refused deletion is reported and continued"),
]

USED = "something that is not in this stack's state uses it: "
SUBNET_USER = "--filters Name=subnet-id,Values=subnet-0a1b2c3d` in its region lists interfaces with what made them; "
# By type: the provider's words, the call, AWS's words, and the remedy.
NODES = {
    "autoscaling:Tag": (
        "deleting AutoScaling Group (eks-1) tag (a)",
        "Auto Scaling: DeleteTags",
        "ResourceContention: You already have a pending update to an Amazon EC2 Auto Scaling resource",
        WAIT,
    ),
    "eks:Addon": (
        "deleting EKS Add-On (a:coredns)",
        "EKS: DeleteAddon",
        "ServerException: server-side issue",
        INTERNAL,
    ),
    # EKS API Reference, Issue: Ec2SecurityGroupDeletionFailure
    "eks:NodeGroup": (
        "waiting for EKS Node Group (a:b) delete: unexpected state 'DELETE_FAILED', wanted target ''. last error: 1 "
        "error occurred:\n\t* sg-0a1b2c3d: Ec2SecurityGroupDeletionFailure: DependencyViolation - resource has a "
        "dependent object",
        "",
        "",
        f"{USED}`aws ec2 describe-network-interfaces --filters Name=group-id,Values=sg-0a1b2c3d`",
    ),
    "eks:PodIdentityAssociation": (
        "deleting EKS Pod Identity Association (a-1)",
        "EKS: DeletePodIdentityAssociation",
        denied("eks:DeletePodIdentityAssociation"),
        f"allow eks:DeletePodIdentityAssociation {ALLOWED}",
    ),
    "eks:AccessPolicyAssociation": (
        "deleting EKS Access Policy Association (a#b#c)",
        "EKS: DisassociateAccessPolicy",
        "api error ThrottlingException: Rate exceeded",
        THROTTLED,
    ),
    "eks:AccessEntry": (
        "deleting EKS Access Entry (a:b)",
        "EKS: DeleteAccessEntry",
        "ServerException: try again",
        INTERNAL,
    ),
}
CLUSTER = {
    # EKS API Reference, DeleteCluster
    "eks:Cluster": (
        "deleting EKS Cluster (spotmpi-cpu)",
        "EKS: DeleteCluster",
        "ResourceInUseException: Cluster has nodegroups attached",
        "`aws eks list-nodegroups --cluster-name spotmpi-cpu` lists them in its region; delete them",
    ),
    "iam:RolePolicyAttachment": (
        "detaching IAM Policy (arn:aws:iam::aws:policy/A) from IAM Role (a)",
        "IAM: DetachRolePolicy",
        denied("iam:DetachRolePolicy", "with an explicit deny in a permissions boundary"),
        "allow iam:DetachRolePolicy: a policy denies it, of the organization or a permissions boundary",
    ),
    "iam:Role": (
        "deleting IAM Role (a)",
        "IAM: DeleteRole",
        "DeleteConflict: Cannot delete entity, must detach all policies first.",
        f"{USED}delete that",
    ),
    "iam:RolePolicy": (
        "deleting IAM Role Policy (a:b)",
        "IAM: DeleteRolePolicy",
        "api error Throttling: Rate exceeded",
        THROTTLED,
    ),
    "cloudwatch:LogGroup": (
        "deleting CloudWatch Logs Log Group (/aws/eks/a/cluster)",
        "CloudWatch Logs: DeleteLogGroup",
        "OperationAbortedException: A conflicting operation is currently in progress against this resource.",
        WAIT,
    ),
}
NETWORK = {
    "vpc:SecurityGroupIngressRule": (
        "deleting VPC Security Group Rule (sgr-1)",
        "EC2: RevokeSecurityGroupIngress",
        denied("ec2:RevokeSecurityGroupIngress"),
        f"allow ec2:RevokeSecurityGroupIngress {ALLOWED}",
    ),
    "ec2:Route": (
        "deleting Route in Route Table (rtb-1) with destination (0.0.0.0/0)",
        "EC2: DeleteRoute",
        "api error RequestLimitExceeded: Request limit exceeded.",
        THROTTLED,
    ),
    "ec2:RouteTableAssociation": (
        "deleting Route Table Association (rtbassoc-1)",
        "EC2: DisassociateRouteTable",
        "api error InternalError: An internal error has occurred",
        INTERNAL,
    ),
    "ec2:NatGateway": (
        "waiting for EC2 NAT Gateway (nat-1) delete: timeout while waiting for state to become 'deleted' (last state: "
        "'deleting', timeout: 30m0s)",
        "",
        "",
        WAIT,
    ),
    "ec2:VpcEndpoint": (
        "waiting for EC2 VPC Endpoint (vpce-1) delete: timeout while waiting for resource to be gone (last state: "
        "'deleting', timeout: 10m0s)",
        "",
        "",
        WAIT,
    ),
    "ec2:RouteTable": (
        "deleting Route Table (rtb-1)",
        "EC2: DeleteRouteTable",
        "api error DependencyViolation: The routeTable 'rtb-1' has dependencies and cannot be deleted.",
        f"{USED}delete that",
    ),
    "ec2:Subnet": (
        "deleting EC2 Subnet (subnet-0a1b2c3d)",
        "EC2: DeleteSubnet",
        "api error DependencyViolation: The subnet 'subnet-0a1b2c3d' has dependencies and cannot be deleted.",
        f"{USED}`aws ec2 describe-network-interfaces {SUBNET_USER}delete that",
    ),
    "ec2:SecurityGroup": (
        "deleting Security Group (sg-0a1b2c3d)",
        "EC2: DeleteSecurityGroup",
        "api error DependencyViolation: resource sg-0a1b2c3d has a dependent object",
        "Name=group-id,Values=sg-0a1b2c3d` in its region lists interfaces",
    ),
    "ec2:InternetGateway": (
        "detaching EC2 Internet Gateway (igw-1) from EC2 VPC (vpc-0a1b2c3d)",
        "EC2: DetachInternetGateway",
        "api error DependencyViolation: Network vpc-0a1b2c3d has some mapped public address(es).",
        "Name=vpc-id,Values=vpc-0a1b2c3d` in its region lists interfaces",
    ),
    "ec2:Eip": (
        "deleting EC2 EIP (eipalloc-1)",
        "EC2: ReleaseAddress",
        "api error InvalidIPAddress.InUse: Address 203.0.113.7 is in use.",
        f"{USED}delete that",
    ),
    "ec2:LaunchTemplate": (
        "deleting EC2 Launch Template (lt-1)",
        "EC2: DeleteLaunchTemplate",
        denied("ec2:DeleteLaunchTemplate"),
        f"allow ec2:DeleteLaunchTemplate {ALLOWED}",
    ),
    "ec2:Vpc": (
        "deleting EC2 VPC (vpc-0a1b2c3d)",
        "EC2: DeleteVpc",
        "api error DependencyViolation: The vpc 'vpc-0a1b2c3d' has dependencies and cannot be deleted.",
        "Name=vpc-id,Values=vpc-0a1b2c3d` in its region lists interfaces",
    ),
}
STORAGE = {
    "efs:MountTarget": (
        "deleting EFS Mount Target (fsmt-1)",
        "EFS: DeleteMountTarget",
        "DependencyTimeout: The service timed out trying to fulfill the request",
        INTERNAL,
    ),
    "efs:AccessPoint": (
        "deleting EFS Access Point (fsap-1)",
        "EFS: DeleteAccessPoint",
        denied("elasticfilesystem:DeleteAccessPoint", "with an explicit deny in an identity-based policy"),
        "allow elasticfilesystem:DeleteAccessPoint: a policy denies it",
    ),
    "efs:BackupPolicy": (
        "deleting EFS Backup Policy (fs-1)",
        "EFS: PutBackupPolicy",
        "IncorrectFileSystemLifeCycleState: File system 'fs-1' is in the wrong state: updating",
        WAIT,
    ),
    "efs:FileSystem": (
        "deleting EFS File System (fs-1)",
        "EFS: DeleteFileSystem",
        "FileSystemInUse: The file system 'fs-1' has mount targets",
        f"{USED}delete that",
    ),
    "ecr:LifecyclePolicy": (
        "deleting ECR Lifecycle Policy (a)",
        "ECR: DeleteLifecyclePolicy",
        "ServerException: These errors are usually caused by a server-side issue.",
        INTERNAL,
    ),
    "ecr:Repository": (
        "deleting ECR Repository (a)",
        "ECR: DeleteRepository",
        denied("ecr:DeleteRepository"),
        f"allow ecr:DeleteRepository {ALLOWED}",
    ),
    "kms:Key": (
        "deleting KMS Key (1234)",
        "KMS: ScheduleKeyDeletion",
        denied("kms:ScheduleKeyDeletion", "because no resource-based policy allows it"),
        f"allow kms:ScheduleKeyDeletion {ALLOWED}",
    ),
    "budgets:Budget": (
        "deleting Budget (123456789012:a)",
        "Budgets: DeleteBudget",
        denied("budgets:ModifyBudget"),
        f"allow budgets:ModifyBudget {ALLOWED}",
    ),
}
# The provider deletes nothing of these.
NOTHING = {"aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"}


def test_each_kind_of_a_built_environment_is_tried(built: Callable[[str], BuiltStack]) -> None:
    full = built("full")
    kinds = {record.token for record in full.records.values() if record.token.startswith("aws:")}
    assert kinds - NOTHING == {token_of(kind) for kind in NODES | CLUSTER | NETWORK | STORAGE}


@pytest.mark.parametrize("part", [NODES, CLUSTER, NETWORK, STORAGE], ids=["nodes", "cluster", "network", "storage"])
def test_a_refused_deletion_is_named_with_its_reason_and_the_next_down_goes_on(
    built: Callable[[str], BuiltStack], part: dict[str, tuple[str, str, str, str]]
) -> None:
    """Each down goes on where the one before was refused; what it deletes before its own refusal is tried from anew."""
    full, rest = built("full"), list(part)
    cloud, stack = full.lab.cloud, full.stack
    while rest:
        full.restore()
        for kind in tuple(rest):
            if not cloud.records.of(token_of(kind)):
                continue
            refusal = RefusedCall(*part[kind])
            refusal.plan(cloud, "delete", kind)
            with pytest.raises(SpotmpiError) as refused:
                down(stack, full.lab.dependencies)
            refusal.require_line(str(refused.value), f"destroy --stack {stack}", kind)
            rest.remove(kind)
        assert down(stack, full.lab.dependencies) == () and len(cloud.records) == 0
