"""The minimal IAM policies for each task: to look, to run jobs, to build and destroy. None needs an administrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotmpi.core.errors import input_error
from spotmpi.environments.resource_kinds import RESOURCE_KINDS

Document = dict[str, Any]

# The calls of zones, doctor, nodes, cost and upgrade; a missing one only loses its column or check.
LOOK: Sequence[str] = (
    *(kind.right for kind in RESOURCE_KINDS if kind.find or kind.quota),
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "backup:ListRecoveryPointsByResource",
    "ce:GetCostAndUsage",
    "cloudformation:ListStacks",  # describing all stacks needs both
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeRegions",
    "ec2:DescribeSecurityGroupRules",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:GetSpotPlacementScores",
    "ecr:DescribeImages",
    "eks:DescribeAddon",
    "eks:DescribeAddonVersions",
    "eks:DescribeCluster",
    "eks:DescribeClusterVersions",
    "eks:DescribeNodegroup",
    "eks:ListAddons",
    "eks:ListNodegroups",
    "elasticfilesystem:DescribeMountTargetSecurityGroups",
    "pricing:GetProducts",
    "s3:GetBucketPublicAccessBlock",
    "s3:GetBucketVersioning",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "servicequotas:ListRequestedServiceQuotaChangeHistoryByQuota",
    "ssm:GetParameter",
)
REQUEST_QUOTA = "servicequotas:RequestServiceQuotaIncrease"
# Keeping nodes warm, for people who run jobs.
SCALE: Sequence[str] = (
    "autoscaling:DeleteScheduledAction",
    "autoscaling:PutScheduledUpdateGroupAction",
    "autoscaling:UpdateAutoScalingGroup",
)
_SCALING_GROUPS = "arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/eks-spotmpi-*"
# Pushing images; Kubernetes rights come from the environment's `cluster.users`.
PUSH: Sequence[str] = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
)
_LOGIN = "ecr:GetAuthorizationToken"
_REPOSITORIES = "arn:aws:ecr:*:*:repository/spotmpi-*/*"
# Pulumi's state in a bucket: to create the bucket, and to write to it.
_CREATE_STATE = (
    *("s3:CreateBucket", "s3:GetBucketPublicAccessBlock", "s3:GetBucketVersioning", "s3:PutBucketPublicAccessBlock"),
    *("s3:PutBucketVersioning", "s3:PutEncryptionConfiguration"),
)
_WRITE_STATE = ("s3:DeleteObject", "s3:PutObject")
_READ = (
    *("autoscaling:Describe*", "ec2:Describe*", "ecr:Describe*", "ecr:GetLifecyclePolicy", "ecr:GetRepositoryPolicy"),
    *("ecr:List*", "eks:Describe*", "eks:List*", "elasticfilesystem:Describe*", "iam:Get*", "iam:List*"),
    *("kms:Describe*", "kms:Get*", "kms:List*", "logs:Describe*", "logs:List*", "tag:GetResources"),
    *("cloudformation:DescribeStacks", "cloudformation:ListStacks", "backup:List*"),
)
# People log in to registries, too; shorter than all names, as IAM limits the length of a policy.
_READ_BY_PEOPLE = (*(each for each in _READ if not each.startswith("ecr:Get")), "ecr:Get*")
# What the checks of `up` read besides. Without list prices its lines have none of groups on demand.
_CHECKED = ("servicequotas:Get*",)
# The public parameters in which an upgrade finds the newest AMI release, and `up` whether a setting has a newer one.
_RELEASES = ("ssm:GetParameter",)
_PUBLIC_PARAMETERS = "arn:aws:ssm:*::parameter/aws/*"
# By Pulumi's resource type: the actions that create, change and delete it, besides reading.
BUILD: Mapping[str, Sequence[str]] = {
    "aws:autoscaling/tag:Tag": ("autoscaling:CreateOrUpdateTags", "autoscaling:DeleteTags"),
    "aws:budgets/budget:Budget": (
        *("budgets:ListTagsForResource", "budgets:ModifyBudget", "budgets:TagResource", "budgets:UntagResource"),
        "budgets:ViewBudget",
    ),
    "aws:cloudwatch/logGroup:LogGroup": (
        *("logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:PutRetentionPolicy", "logs:TagResource"),
        "logs:UntagResource",
    ),
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": (
        *("ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress"),
        *("ec2:RevokeSecurityGroupEgress", "ec2:RevokeSecurityGroupIngress"),
    ),
    "aws:ec2/eip:Eip": ("ec2:AllocateAddress", "ec2:DisassociateAddress", "ec2:ReleaseAddress"),
    "aws:ec2/internetGateway:InternetGateway": (
        *("ec2:AttachInternetGateway", "ec2:CreateInternetGateway"),
        *("ec2:DeleteInternetGateway", "ec2:DetachInternetGateway"),
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": (
        *("ec2:CreateLaunchTemplate", "ec2:CreateLaunchTemplateVersion", "ec2:DeleteLaunchTemplate"),
        *("ec2:ModifyLaunchTemplate", "ec2:RunInstances"),
    ),
    "aws:ec2/natGateway:NatGateway": ("ec2:CreateNatGateway", "ec2:DeleteNatGateway"),
    "aws:ec2/placementGroup:PlacementGroup": ("ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"),
    "aws:ec2/route:Route": ("ec2:CreateRoute", "ec2:DeleteRoute", "ec2:ReplaceRoute"),
    "aws:ec2/routeTable:RouteTable": ("ec2:CreateRouteTable", "ec2:DeleteRouteTable"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        *("ec2:AssociateRouteTable", "ec2:DisassociateRouteTable", "ec2:ReplaceRouteTableAssociation"),
    ),
    "aws:ec2/securityGroup:SecurityGroup": ("ec2:CreateSecurityGroup", "ec2:DeleteSecurityGroup"),
    "aws:ec2/subnet:Subnet": ("ec2:CreateSubnet", "ec2:DeleteSubnet", "ec2:ModifySubnetAttribute"),
    "aws:ec2/vpc:Vpc": ("ec2:CreateTags", "ec2:CreateVpc", "ec2:DeleteTags", "ec2:DeleteVpc", "ec2:ModifyVpcAttribute"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("ec2:CreateVpcEndpoint", "ec2:DeleteVpcEndpoints", "ec2:ModifyVpcEndpoint"),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": ("ecr:DeleteLifecyclePolicy", "ecr:PutLifecyclePolicy"),
    "aws:ecr/repository:Repository": (
        *("ecr:CreateRepository", "ecr:DeleteRepository", "ecr:PutImageScanningConfiguration"),
        *("ecr:PutImageTagMutability", "ecr:TagResource", "ecr:UntagResource"),
    ),
    "aws:efs/accessPoint:AccessPoint": (
        *("elasticfilesystem:CreateAccessPoint", "elasticfilesystem:DeleteAccessPoint"),
        *("elasticfilesystem:TagResource", "elasticfilesystem:UntagResource"),
    ),
    "aws:efs/backupPolicy:BackupPolicy": ("elasticfilesystem:PutBackupPolicy",),
    "aws:efs/fileSystem:FileSystem": (
        *("elasticfilesystem:CreateFileSystem", "elasticfilesystem:DeleteFileSystem"),
        "elasticfilesystem:UpdateFileSystem",
    ),
    "aws:efs/mountTarget:MountTarget": (
        *("elasticfilesystem:CreateMountTarget", "elasticfilesystem:DeleteMountTarget"),
        *("elasticfilesystem:ModifyMountTargetSecurityGroups", "ec2:CreateNetworkInterface"),
        *("ec2:DeleteNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute"),
    ),
    "aws:eks/addon:Addon": ("eks:CreateAddon", "eks:DeleteAddon", "eks:UpdateAddon"),
    "aws:eks/nodeGroup:NodeGroup": (
        *("eks:CreateNodegroup", "eks:DeleteNodegroup", "eks:UpdateNodegroupConfig"),
        *("eks:UpdateNodegroupVersion", "iam:CreateServiceLinkedRole"),
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": (
        *("eks:CreatePodIdentityAssociation", "eks:DeletePodIdentityAssociation", "eks:UpdatePodIdentityAssociation"),
    ),
    "aws:iam/role:Role": (
        *("iam:CreateRole", "iam:DeleteRole", "iam:TagRole", "iam:UntagRole", "iam:UpdateAssumeRolePolicy"),
        "iam:UpdateRole",
    ),
    "aws:iam/rolePolicy:RolePolicy": ("iam:DeleteRolePolicy", "iam:PutRolePolicy"),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": ("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
    "aws:kms/key:Key": (
        *("kms:CreateGrant", "kms:CreateKey", "kms:EnableKeyRotation", "kms:ScheduleKeyDeletion", "kms:TagResource"),
        "kms:UntagResource",
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": ("ec2:ModifySecurityGroupRules",),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": ("ec2:ModifySecurityGroupRules",),
    "eks:index:Cluster": (
        *("eks:AssociateAccessPolicy", "eks:AssociateEncryptionConfig", "eks:CreateAccessEntry", "eks:CreateCluster"),
        *("eks:DeleteAccessEntry", "eks:DeleteCluster", "eks:DisassociateAccessPolicy", "eks:TagResource"),
        *("eks:UntagResource", "eks:UpdateAccessEntry", "eks:UpdateClusterConfig", "eks:UpdateClusterVersion"),
    ),
}
# Which actions take a resource by its name or its tags is from AWS's Service Authorization Reference.
# Resources whose names start with that of an environment; EKS names the Auto Scaling groups after node groups.
_BY_NAME = (
    *(_SCALING_GROUPS, "arn:aws:budgets::*:budget/spotmpi-*", "arn:aws:ecr:*:*:repository/spotmpi-*"),
    *("arn:aws:eks:*:*:access-entry/spotmpi-*", "arn:aws:eks:*:*:addon/spotmpi-*", "arn:aws:eks:*:*:cluster/spotmpi-*"),
    *("arn:aws:eks:*:*:nodegroup/spotmpi-*", "arn:aws:eks:*:*:podidentityassociation/spotmpi-*"),
    "arn:aws:logs:*:*:log-group:/aws/eks/spotmpi-*",
)
_NAMED_SERVICES = ("autoscaling", "budgets", "ecr", "eks", "logs")
# The other resources have names that AWS chooses. Every one that can have tags has this one, from its creation.
_OF_ENVIRONMENTS = {"StringLike": {"aws:ResourceTag/spotmpi:environment": "spotmpi-*"}}
# Interfaces have no tags of ours: EFS and the VPC CNI create them. AWS deletes none that is in use.
_INTERFACES = {"ec2:DeleteNetworkInterface", "ec2:DisassociateAddress"}
_ON_INTERFACES = "arn:aws:ec2:*:*:network-interface/*"
# In a build, on any resource, since it has no tag of ours, or none yet.
_UNTAGGED = {
    # Creation: no resource to name, or several at once, of which some are new and some are not.
    *("ec2:AllocateAddress", "ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress"),
    *("ec2:CreateInternetGateway", "ec2:CreateLaunchTemplate", "ec2:CreateNatGateway", "ec2:CreateNetworkInterface"),
    *("ec2:CreatePlacementGroup", "ec2:CreateRouteTable", "ec2:CreateSecurityGroup", "ec2:CreateSubnet"),
    *("ec2:CreateVpc", "ec2:CreateVpcEndpoint", "ec2:RunInstances", "eks:CreateCluster"),
    *("elasticfilesystem:CreateFileSystem", "iam:CreateServiceLinkedRole", "kms:CreateKey"),
    # Mount targets in a file system that a user brought (`storage.file_system_id`); they hold no data.
    *("ec2:ModifyNetworkInterfaceAttribute", "elasticfilesystem:CreateMountTarget"),
    *("elasticfilesystem:DeleteMountTarget", "elasticfilesystem:ModifyMountTargetSecurityGroups"),
    # KMS can take minutes to see the tags of a new key, and can't tell tags at creation from later ones.
    *("kms:CreateGrant", "kms:EnableKeyRotation", "kms:TagResource"),
    # The default security group of a new VPC is closed before it can be tagged.
    *("ec2:RevokeSecurityGroupEgress", "ec2:RevokeSecurityGroupIngress"),
}
_ON_GROUPS = "arn:aws:ec2:*:*:security-group/*"
_ROLES = "arn:aws:iam::*:role/spotmpi-*"
_SERVICES = ("ec2.amazonaws.com", "eks.amazonaws.com", "pods.eks.amazonaws.com")
POLICIES = ("look", "run", "up", "preview", "build", "destroy")
# The permissions boundaries of the environments' roles; each stack with `spotmpi:ci` has one, whose name ends with
# characters that Pulumi chooses. No role of CI may create or change a policy.
BOUNDARY = "arn:aws:iam::*:policy/spotmpi-*-boundary-*"
# These grant permissions to a role; without a boundary they allow creating an administrator role.
_GRANTS = ("iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy")
_DELETION_VERBS = ("Delete", "Detach", "Disassociate", "Release", "Revoke", "ScheduleKeyDeletion")
# The actions by which the AWS provider deletes a budget and a file system's backup policy.
_BUDGET_AND_BACKUP_DELETION = ("budgets:ModifyBudget", "budgets:ViewBudget", "elasticfilesystem:PutBackupPolicy")
_KEPT_STORAGE = {"StringLike": {"aws:ResourceTag/spotmpi:environment": "spotmpi-*-data"}}


def policy(name: str, bucket: str | None = None) -> Document:
    """The IAM policy *name*.

    look (zones, doctor, cost), run (run, image push, scale) and up (up, upgrade, down) are for people; preview, build
    and destroy are for CI roles. build is `up` with a permissions boundary on every role that it creates; destroy
    creates nothing and can't delete persistent storage. Existing resources are changed and deleted only if their names
    or tags are an environment's, where AWS supports that. *bucket* is the S3 bucket of Pulumi's state, if it is in one.
    """
    push = _allow("Push", PUSH, _REPOSITORIES)
    state = _state(bucket, name in ("up", "build", "destroy")) if bucket else []
    if name == "look":
        return _document(_allow("Look", [*LOOK, REQUEST_QUOTA]), *state)
    if name == "run":
        scale = _allow("Scale", SCALE, _SCALING_GROUPS)
        return _document(_allow("Look", [*LOOK, _LOGIN]), scale, push, *state)
    if name == "up":
        return _document(*_build_statements(_READ_BY_PEOPLE), push, *state)
    if name == "preview":
        return _document(_allow("Read", _READ), *state)
    if name == "build":
        return _document(*_with_boundary(_build_statements()), *state)
    if name == "destroy":
        return _document(*_destroy_statements(), *state)
    raise input_error("--iam", name, f"use one of: {', '.join(POLICIES)}")


def _state(bucket: str, change: bool) -> list[Document]:
    """The bucket's name may be long, and a policy may not: each statement names it once."""
    arn = f"arn:aws:s3:::{bucket}"
    objects, whole = ["s3:GetObject"], ["s3:ListBucket"]
    if change:
        objects, whole = [*objects, *_WRITE_STATE], [*whole, *_CREATE_STATE]
    return [_allow("State", objects, f"{arn}/*"), _allow("StateBucket", whole, arn)]


def _build_statements(read: Sequence[str] = _READ) -> list[Document]:
    actions = {action for each in BUILD.values() for action in each} | set(SCALE)
    roles = _role_actions(actions)
    to_services = {"StringEquals": {"iam:PassedToService": list(_SERVICES)}}
    pass_role = _allow("HandRolesOver", ["iam:PassRole"], _ROLES, to_services)
    build, others = _allow("Build", actions & _UNTAGGED), actions - roles - _UNTAGGED
    return [
        *(_allow("Read", [*read, *_CHECKED]), _allow("Releases", _RELEASES, _PUBLIC_PARAMETERS)),
        *(build, *_of_environments(others), *_tagging()),
        *(_allow("Roles", roles, _ROLES), pass_role),
    ]


def _of_environments(actions: set[str]) -> list[Document]:
    """The actions on resources of environments only, found by name or tag, and on interfaces."""
    named = {each for each in actions if each.partition(":")[0] in _NAMED_SERVICES}
    # Of an address, IAM checks both ends: the interface, and by its tag the address.
    tagged = _allow("Tagged", actions - named - {"ec2:DeleteNetworkInterface"}, condition=_OF_ENVIRONMENTS)
    of_clusters = {"StringLike": {"aws:ResourceTag/aws:eks:cluster-name": "spotmpi-*"}}
    eks_groups = _allow("GroupsOfEks", ["ec2:DeleteSecurityGroup"], condition=of_clusters)
    interfaces = _allow("Interfaces", _INTERFACES, _ON_INTERFACES)
    return [_allow("Named", named, list(_BY_NAME)), tagged, eks_groups, interfaces]


def _tagging() -> list[Document]:
    """Tags on new resources, and on security groups: a new VPC's default one has no tags."""
    in_efs = {"StringLike": {"elasticfilesystem:CreateAction": "*"}}
    with_our_tag = {"StringLike": {"aws:RequestTag/spotmpi:environment": "spotmpi-*"}}
    return [
        _allow("TagNew", ["ec2:CreateTags"], condition={"StringLike": {"ec2:CreateAction": "*"}}),
        _allow("TagGroups", ["ec2:CreateTags"], _ON_GROUPS, with_our_tag),
        _allow("TagEfs", ["elasticfilesystem:TagResource"], condition=in_efs),
    ]


def _with_boundary(statements: Sequence[Document]) -> list[Document]:
    """The statements, limited to granting permissions to roles with the boundary."""
    bounded = _allow("Bounded", _GRANTS, _ROLES, {"StringLike": {"iam:PermissionsBoundary": BOUNDARY}})
    others = [{**each, "Action": [action for action in each["Action"] if action not in _GRANTS]} for each in statements]
    return [*others, bounded]


def _destroy_statements() -> list[Document]:
    all_actions = {action for each in BUILD.values() for action in each}
    actions = {action for action in all_actions if action.partition(":")[2].startswith(_DELETION_VERBS)} | set(
        _BUDGET_AND_BACKUP_DELETION
    )
    roles = _role_actions(actions)
    to_zero = {"NumericEquals": {"autoscaling:MaxSize": "0"}}
    close = _allow("CloseNodeGroups", ["autoscaling:UpdateAutoScalingGroup"], _SCALING_GROUPS, to_zero)
    storage = ("elasticfilesystem:DeleteAccessPoint", "elasticfilesystem:DeleteFileSystem")
    keep = {**_allow("KeepData", storage, condition=_KEPT_STORAGE), "Effect": "Deny"}
    of_environments = _of_environments(actions - roles)
    return [_allow("Read", _READ), *of_environments, _allow("Roles", roles, _ROLES), close, keep]


def _role_actions(actions: set[str]) -> set[str]:
    return {action for action in actions if action.startswith("iam:") and "ServiceLinked" not in action}


def _allow(
    name: str, actions: Sequence[str] | set[str], resource: str | list[str] = "*", condition: Document | None = None
) -> Document:
    statement = {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return {**statement, "Condition": condition} if condition else statement


def _document(*statements: Document) -> Document:
    return {"Version": "2012-10-17", "Statement": list(statements)}
