"""IAM documents as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]

NODE_POLICIES: Mapping[str, str] = {
    "worker": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
    "cni": "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy",
    "pull": "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly",
}
EFS_DRIVER_POLICY = "arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy"


def _document(*statements: Mapping[str, Any]) -> Document:
    return {"Version": "2012-10-17", "Statement": [dict(statement) for statement in statements]}


def trust_ec2() -> Document:
    """Lets EC2 machines take the role."""
    principal = {"Service": "ec2.amazonaws.com"}
    return _document({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})


def trust_pod_identity() -> Document:
    """Lets EKS hand the role to pods of an associated service account."""
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


def github_trust(provider_arn: str, repository: str, subjects: Sequence[str]) -> Document:
    """Lets workflows of one GitHub repository take the role, for the given subject endings only."""
    issuer = "token.actions.githubusercontent.com"
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Federated": provider_arn},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {
                "StringEquals": {
                    f"{issuer}:aud": "sts.amazonaws.com",
                    f"{issuer}:sub": [f"repo:{repository}:{subject}" for subject in subjects],
                },
            },
        }
    )


def preview_state(bucket: str) -> Document:
    """Lets a preview read the state, and hold the lock that keeps two runs of a stack apart."""
    return _document(
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": _objects(bucket, "", "/*")},
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:DeleteObject"],
            "Resource": _objects(bucket, "/.pulumi/locks/*"),
        },
    )


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
