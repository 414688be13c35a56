"""Each kind of resource whose creation is refused once: `up` says which and why in a line, and the next one goes on."""

from __future__ import annotations

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.down import down
from spotmpi.environments.up import UpOptions, up
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.cloud import Cloud
from tests.engine.refusals import ALLOWED, INTERNAL, THROTTLED, WAIT, RefusedCall, denied, token_of
from tests.engine.setting_changes import OTHERS, config_of
from tests.engine.stack_lifecycle import ACCESS

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(3600),
    pytest.mark.nightly("minutes for each part; by day a quota that is used up is reported and continued"),
]

QUOTA = "a quota of the account is used up: delete what nobody needs, or request an increase in Service Quotas"
ELSEWHERE = "another stack or a former environment has it: `spotmpi doctor cpu` lists leftovers; delete it"
FULL = "the subnet has no free addresses: set a larger `network.cidr`"
SERVICE_CONTROL = "with an explicit deny in a service control policy"
OVERRIDES = "a policy denies it, of the organization or a permissions boundary, which overrides others"
NO_RIGHT = "use the role that built it, which can add to `cluster.admins`"
FORBIDDEN = (
    'is forbidden: User "arn:aws:sts::1:assumed-role/dev/me" cannot create resource in API group "" of the cluster'
)


def _limit(words: str, call: str, code: str, what: str) -> tuple[str, str, str, str]:
    """A limit of EC2 (API reference, error codes)."""
    return words, f"EC2: {call}", f"api error {code}: The maximum number of {what} has been reached.", QUOTA


def _kubernetes(message: str, remedy: str) -> tuple[str, str, str, str]:
    return message, "", "", remedy


# By type, in the order in which they are made: the provider's words, the call, AWS's words, and the remedy.
NETWORK = {
    "ec2:Vpc": _limit("creating EC2 VPC", "CreateVpc", "VpcLimitExceeded", "VPCs"),
    "ec2:Subnet": _limit("creating EC2 Subnet", "CreateSubnet", "SubnetLimitExceeded", "subnets"),
    "ec2:InternetGateway": _limit(
        "creating EC2 Internet Gateway", "CreateInternetGateway", "InternetGatewayLimitExceeded", "internet gateways"
    ),
    "ec2:RouteTable": _limit("creating Route Table", "CreateRouteTable", "RouteTableLimitExceeded", "route tables"),
    "ec2:DefaultSecurityGroup": (
        "updating Default Security Group (sg-1) tags",
        "EC2: CreateTags",
        denied("ec2:CreateTags"),
        f"allow ec2:CreateTags {ALLOWED}",
    ),
    "ec2:SecurityGroup": _limit(
        "creating Security Group (a)", "CreateSecurityGroup", "SecurityGroupLimitExceeded", "security groups"
    ),
    "ec2:VpcEndpoint": _limit(
        "creating EC2 VPC Endpoint (com.amazonaws.us-east-1.s3)",
        "CreateVpcEndpoint",
        "VpcEndpointLimitExceeded",
        "VPC endpoints",
    ),
    "ec2:RouteTableAssociation": (
        "creating Route Table (rtb-1) Association",
        "EC2: AssociateRouteTable",
        "api error InternalError: An internal error has occurred",
        INTERNAL,
    ),
    "ec2:Eip": _limit("creating EC2 EIP", "AllocateAddress", "AddressLimitExceeded", "addresses"),
    # eksctl#560
    "ec2:NatGateway": (
        "creating EC2 NAT Gateway",
        "EC2: CreateNatGateway",
        "api error NatGatewayLimitExceeded: Performing this operation would exceed the limit of 5 NAT gateways",
        QUOTA,
    ),
    "ec2:Route": _limit(
        "creating Route in Route Table (rtb-1) with destination (0.0.0.0/0)",
        "CreateRoute",
        "RouteLimitExceeded",
        "routes",
    ),
}
STORAGE = {
    "efs:FileSystem": (
        "creating EFS file system",
        "EFS: CreateFileSystem",
        "FileSystemLimitExceeded: You have reached the maximum number of file systems for the account",
        QUOTA,
    ),
    "ecr:Repository": (
        "creating ECR Repository (a)",
        "ECR: CreateRepository",
        "RepositoryAlreadyExistsException: The repository with name 'a' already exists in the registry",
        ELSEWHERE,
    ),
    "kms:Key": (
        "creating KMS Key",
        "KMS: CreateKey",
        denied("kms:CreateKey", SERVICE_CONTROL),
        f"allow kms:CreateKey: {OVERRIDES}",
    ),
    "budgets:Budget": (
        "creating Budget (spotmpi-cpu)",
        "Budgets: CreateBudget",
        "CreationLimitExceededException: You've exceeded the notification or subscriber limit.",
        QUOTA,
    ),
    "ecr:LifecyclePolicy": (
        "creating ECR Lifecycle Policy (a)",
        "ECR: PutLifecyclePolicy",
        denied("ecr:PutLifecyclePolicy"),
        f"allow ecr:PutLifecyclePolicy {ALLOWED}",
    ),
    "efs:BackupPolicy": (
        "creating EFS Backup Policy (fs-1)",
        "EFS: PutBackupPolicy",
        "IncorrectFileSystemLifeCycleState: File system 'fs-1' is in the wrong state: updating",
        WAIT,
    ),
    "efs:AccessPoint": (
        "creating EFS Access Point (fs-1)",
        "EFS: CreateAccessPoint",
        "AccessPointLimitExceeded: You have reached the maximum number of access points",
        QUOTA,
    ),
    "vpc:SecurityGroupIngressRule": _limit(
        "creating VPC Security Group Rule",
        "AuthorizeSecurityGroupIngress",
        "RulesPerSecurityGroupLimitExceeded",
        "rules per security group",
    ),
    "efs:MountTarget": (
        "creating EFS Mount Target (fs-1)",
        "EFS: CreateMountTarget",
        "NoFreeAddressesInSubnet: The specified subnet has no free IP addresses",
        FULL,
    ),
}
CLUSTER = {
    "iam:Role": (
        "creating IAM Role (spotmpi-cpu-nodes-1234567)",
        "IAM: CreateRole",
        "EntityAlreadyExists: Role with name spotmpi-cpu-nodes-1234567 already exists.",
        ELSEWHERE,
    ),
    "cloudwatch:LogGroup": (
        "creating CloudWatch Logs Log Group (/aws/eks/spotmpi-cpu/cluster)",
        "CloudWatch Logs: CreateLogGroup",
        "ResourceAlreadyExistsException: The specified log group already exists",
        ELSEWHERE,
    ),
    "iam:RolePolicyAttachment": (
        "attaching IAM Policy (arn:aws:iam::aws:policy/A) to IAM Role (a)",
        "IAM: AttachRolePolicy",
        "LimitExceeded: Cannot exceed quota for PoliciesPerRole: 10",
        QUOTA,
    ),
    "iam:RolePolicy": (
        "putting IAM Role (a) Policy (b)",
        "IAM: PutRolePolicy",
        denied("iam:PutRolePolicy", SERVICE_CONTROL),
        f"allow iam:PutRolePolicy: {OVERRIDES}",
    ),
    "eks:Cluster": (
        "creating EKS Cluster (spotmpi-cpu)",
        "EKS: CreateCluster",
        "ResourceLimitExceededException: You have reached the maximum number of clusters in this region",
        QUOTA,
    ),
    # terraform-aws-eks#2969
    "eks:AccessEntry": (
        "creating EKS Access Entry (spotmpi-cpu:arn:aws:iam::123456789012:role/x)",
        "EKS: CreateAccessEntry",
        "InvalidParameterException: The specified principalArn is invalid: invalid principal.",
        "IAM has no such role or user: correct its ARN in `cluster.admins` or `cluster.users`",
    ),
    "eks:AccessPolicyAssociation": (
        "creating EKS Access Policy Association (a#b#c)",
        "EKS: AssociateAccessPolicy",
        "api error ThrottlingException: Rate exceeded",
        THROTTLED,
    ),
    "eks:PodIdentityAssociation": (
        "creating EKS Pod Identity Association",
        "EKS: CreatePodIdentityAssociation",
        "ResourceInUseException: Association already exists: a-0123456789abcdef0",
        ELSEWHERE,
    ),
    "eks:Addon": (
        "creating EKS Add-On (spotmpi-cpu:coredns)",
        "EKS: CreateAddon",
        "ServerException: These errors are usually caused by a server-side issue.",
        INTERNAL,
    ),
    "ec2:LaunchTemplate": (
        "creating EC2 Launch Template (a)",
        "EC2: CreateLaunchTemplate",
        denied("ec2:CreateLaunchTemplate"),
        f"allow ec2:CreateLaunchTemplate {ALLOWED}",
    ),
    "eks:NodeGroup": (
        "creating EKS Node Group (spotmpi-cpu:a)",
        "EKS: CreateNodegroup",
        "ResourceLimitExceededException: Failed to create nodegroup as limit exceeded",
        QUOTA,
    ),
    "autoscaling:Tag": (
        "creating AutoScaling Group (eks-1) tag (a)",
        "Auto Scaling: CreateOrUpdateTags",
        "api error ResourceContention: You already have a pending update to an Amazon EC2 Auto Scaling resource",
        WAIT,
    ),
}
OBJECTS = {
    "kubernetes:core/v1:Namespace": _kubernetes(
        'namespaces "training" already exists', "it is in the cluster and not in this stack's state: delete it"
    ),
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole": _kubernetes(f'clusterroles "a" {FORBIDDEN}', NO_RIGHT),
    "kubernetes:core/v1:PersistentVolume": _kubernetes(
        'Post "https://1.eks.amazonaws.com/api/v1/persistentvolumes": dial tcp 1.2.3.4:443: connect: connection '
        "refused",
        "check this machine's network",
    ),
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding": _kubernetes(
        f'clusterrolebindings "a" {FORBIDDEN}', NO_RIGHT
    ),
    "kubernetes:core/v1:Secret": _kubernetes(
        'secrets "ssh" already exists', "it is in the cluster and not in this stack's state: delete it"
    ),
    "kubernetes:core/v1:ServiceAccount": _kubernetes(f'serviceaccounts "a" {FORBIDDEN}', NO_RIGHT),
    "kubernetes:rbac.authorization.k8s.io/v1:Role": _kubernetes(f'roles "a" {FORBIDDEN}', NO_RIGHT),
    "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding": _kubernetes(f'rolebindings "a" {FORBIDDEN}', NO_RIGHT),
    "kubernetes:networking.k8s.io/v1:NetworkPolicy": _kubernetes(f'networkpolicies "a" {FORBIDDEN}', NO_RIGHT),
    "kubernetes:core/v1:PersistentVolumeClaim": _kubernetes(
        "the server has asked for the client to provide credentials", NO_RIGHT
    ),
    "kubernetes:helm.sh/v3:Release": _kubernetes(
        'Helm release "kueue-system/kueue" was created, but failed to initialize completely. Use Helm CLI to '
        "investigate.: failed to become available within allocated timeout. Error: Helm Release kueue-system/kueue: "
        "context deadline exceeded",
        "its pods do not become ready: `kubectl get pods --all-namespaces` shows which",
    ),
    **{
        f"kubernetes:kueue.x-k8s.io/v1beta1:{kind}": _kubernetes(
            f'Internal error occurred: failed calling webhook "m{kind.lower()}.kb.io": failed to call webhook: Post '
            '"https://kueue-webhook-service.kueue-system.svc": dial tcp 10.0.1.7:9443: connect: connection refused',
            "are not ready yet: wait a minute",
        )
        for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue")
    },
}
PARTS = {"network": NETWORK, "storage": STORAGE, "cluster": CLUSTER, "objects": OBJECTS}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_refused_creation_is_named_with_its_reason_the_next_up_goes_on_and_down_leaves_nothing_of_the_half(
    environment: EngineEnvironment, cloud: Cloud, part: dict[str, tuple[str, str, str, str]]
) -> None:
    """Each `up` goes on where the one before was refused; what exists before its own refusal is tried from nothing."""
    rest, options = list(part), UpOptions(images=False)
    cloud.existing_arns |= OTHERS
    environment.engine.configure("cpu", {**config_of("full"), "spotmpi:access": ACCESS})
    while rest:
        for kind in tuple(rest):
            before = {record.key for record in cloud.records}
            if cloud.records.of(token_of(kind)):
                continue
            refusal = RefusedCall(*part[kind])
            refusal.plan(cloud, "create", kind)
            with pytest.raises(SpotmpiError) as refused:
                up("cpu", environment.dependencies, options)
            refusal.require_line(str(refused.value), "up --stack cpu", kind)
            assert before <= {record.key for record in cloud.records}
            rest.remove(kind)
        if not rest:
            up("cpu", environment.dependencies, options)
            assert not environment.pulumi.preview("cpu").changes
            kinds = {each.token for each in cloud.records if each.token.startswith(("aws:", "kubernetes:"))}
            assert kinds == {token_of(kind) for each in PARTS.values() for kind in each}, "each kind is in one part"
        created = environment.changes("create")
        assert len(created) == len(set(created))
        cloud.script.calls.clear()
        assert down("cpu", environment.dependencies) == () and len(cloud.records) == 0
