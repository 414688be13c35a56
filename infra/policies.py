"""IAM documents as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]

NODE_POLICIES: Mapping[str, str] = {
    "worker": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
    "cni": "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy",
    "pull": "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly",
}
_STATE = "/*.pulumi/*"  # the backend may be a folder of the bucket
_BOUNDARY = (
    "autoscaling:Describe*",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:UpdateAutoScalingGroup",
    "ec2:AssignPrivateIpAddresses",
    "ec2:AttachNetworkInterface",
    "ec2:AttachVolume",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateNetworkInterface",
    "ec2:CreateRoute",
    "ec2:CreateSecurityGroup",
    "ec2:CreateTags",
    "ec2:CreateVolume",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteRoute",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteVolume",
    "ec2:Describe*",
    "ec2:DetachNetworkInterface",
    "ec2:DetachVolume",
    "ec2:GetInstanceTypesFromInstanceRequirements",
    "ec2:ModifyInstanceAttribute",
    "ec2:ModifyNetworkInterfaceAttribute",
    "ec2:ModifyVolume",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:UnassignPrivateIpAddresses",
    "ec2messages:*",
    "ecr:BatchGetImage",
    "ecr:BatchImportUpstreamImage",
    "ecr:GetAuthorizationToken",
    "ecr:GetDownloadUrlForLayer",
    "eks-auth:AssumeRoleForPodIdentity",
    "eks:DescribeCluster",
    "eks:DescribeNodegroup",
    "elasticfilesystem:CreateAccessPoint",
    "elasticfilesystem:DeleteAccessPoint",
    "elasticfilesystem:Describe*",
    "elasticfilesystem:TagResource",
    "elasticloadbalancing:*",
    "kms:DescribeKey",
    "ssm:DescribeAssociation",
    "ssm:DescribeDocument",
    "ssm:GetDeployablePatchSnapshotForInstance",
    "ssm:GetDocument",
    "ssm:GetManifest",
    "ssm:ListAssociations",
    "ssm:ListInstanceAssociations",
    "ssm:PutComplianceItems",
    "ssm:PutConfigurePackageResult",
    "ssm:PutInventory",
    "ssm:UpdateAssociationStatus",
    "ssm:UpdateInstanceAssociationStatus",
    "ssm:UpdateInstanceInformation",
    "ssmmessages:*",
)
SSM_POLICY = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
EFS_DRIVER_POLICY = "arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy"


def _document(*statements: Mapping[str, Any]) -> Document:
    return {"Version": "2012-10-17", "Statement": [dict(statement) for statement in statements]}


def trust_ec2() -> Document:
    """Lets EC2 machines assume the role."""
    principal = {"Service": "ec2.amazonaws.com"}
    return _document({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})


def trust_pod_identity() -> Document:
    """Lets EKS give the role to pods of an associated service account."""
    principal = {"Service": "pods.eks.amazonaws.com"}
    return _document({"Effect": "Allow", "Principal": principal, "Action": ["sts:AssumeRole", "sts:TagSession"]})


def cluster_autoscaler(cluster: str) -> Document:
    """Lets the autoscaler read all groups, and resize only those that belong to the cluster."""
    read = [
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeLaunchConfigurations",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:DescribeTags",
        "ec2:DescribeImages",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeLaunchTemplateVersions",
        "ec2:GetInstanceTypesFromInstanceRequirements",
    ]
    resize = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
    owned = {"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}}
    return _document(
        {"Effect": "Allow", "Action": read, "Resource": "*"},
        {
            "Effect": "Allow",
            "Action": "eks:DescribeNodegroup",
            "Resource": f"arn:aws:eks:*:*:nodegroup/{cluster}/*/*",
        },
        {"Effect": "Allow", "Action": resize, "Resource": "*", "Condition": owned},
    )


def github_trust(provider_arn: str, repository: str, subjects: Sequence[str], ref: str | None) -> Document:
    """Lets workflows of one GitHub repository assume the role, for these subject endings (and this git ref) only.

    *repository* is spelled as in the repository's tokens: with ids where it was created after 15 July 2026
    (https://github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens/).
    A subject with a GitHub environment does not tell the branch, and a pushed branch can name any environment;
    AWS checks the claim `ref` since January 2026
    (https://aws.amazon.com/about-aws/whats-new/2026/01/aws-sts-supports-validation-identity-provider-claims/).
    """
    issuer = "token.actions.githubusercontent.com"
    claims: dict[str, Any] = {
        f"{issuer}:aud": "sts.amazonaws.com",
        f"{issuer}:sub": [f"repo:{repository}:{subject}" for subject in subjects],
    }
    if ref:
        claims[f"{issuer}:ref"] = ref
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Federated": provider_arn},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringEquals": claims},
        }
    )


def state_reader(bucket: str) -> Document:
    """Lets a preview read the state, whose secrets are encrypted, and nothing else in the bucket."""
    return _document(
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": _objects(bucket, _STATE)},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": _objects(bucket, "")},
    )


def state_writer(bucket: str, key_arn: str | None) -> Document:
    """Lets a build or a destroy read and write the state, and use the KMS key of its secrets where it has one.

    It may not touch the key itself: a build may tag any key, and delete those with an environment's tag.
    """
    objects = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    statements = [
        {"Effect": "Allow", "Action": objects, "Resource": _objects(bucket, _STATE)},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": _objects(bucket, "")},
    ]
    if key_arn:
        statements.append({"Effect": "Allow", "Action": ["kms:Decrypt", "kms:Encrypt"], "Resource": key_arn})
        change = ["kms:CreateGrant", "kms:ScheduleKeyDeletion", "kms:TagResource", "kms:UntagResource"]
        statements.append({"Effect": "Deny", "Action": change, "Resource": key_arn})
    return _document(*statements)


def boundary() -> Document:
    """The most that a role of an environment may ever do, whatever is attached to it.

    It is what AWS's policies for the control plane, nodes, CNI, EFS driver, autoscaler and Session Manager allow,
    except service-linked roles of load balancers, which no environment has, and to read the account's SSM parameters,
    which can be secrets.
    """
    return _document({"Effect": "Allow", "Action": list(_BOUNDARY), "Resource": "*"})


def _objects(bucket: str, *paths: str) -> list[str]:
    return [f"arn:aws:s3:::{bucket}{path}" for path in paths]


def ecr_lifecycle(keep: int) -> Document:
    """Removes untagged images after a week, and all but the newest tagged ones."""
    untagged = {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 7}
    newest = {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": keep}
    return {
        "rules": [
            {"rulePriority": 1, "selection": untagged, "action": {"type": "expire"}},
            {"rulePriority": 2, "selection": newest, "action": {"type": "expire"}},
        ]
    }
