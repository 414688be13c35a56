"""The CI scripts' calls to AWS: the account of the credentials, and who may reach a cluster's Kubernetes API."""

from collections.abc import Collection
from typing import Any

import boto3
import botocore.exceptions

from infra.ci.errors import CiError
from infra.ci.stack_file import StackFile


def check_account(file: StackFile, client: Any = None) -> str:
    """The caller's ARN; CiError unless the credentials are of the stack's account."""
    try:
        identity = (client or boto3.client("sts", region_name=file.region)).get_caller_identity()
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        remedy = f"log in, or assume a role in account {file.account}"
        # What a region answers that does not know the account's keys, as it is not enabled in it.
        if getattr(error, "response", {}).get("Error", {}).get("Code") == "InvalidClientTokenId":
            remedy += f", or enable the region (`aws account enable-region --region-name {file.region}`)"
        raise CiError(f"no usable AWS credentials ({error}): {remedy}") from error
    if identity["Account"] != file.account:
        message = f"the credentials are for account {identity['Account']}, but stack {file.stack} belongs to"
        raise CiError(f"{message} {file.account}: assume a role there; nothing was changed")
    return str(identity["Arn"])


def running_nodes(file: StackFile) -> dict[str, int]:
    """The nodes that run or start by Auto Scaling group of the stack's cluster; CiError where AWS refuses."""
    pages = boto3.client("autoscaling", region_name=file.region).get_paginator("describe_auto_scaling_groups")
    cluster = [{"Name": "tag:eks:cluster-name", "Values": [file.environment]}]
    try:
        groups = [group for page in pages.paginate(Filters=cluster) for group in page["AutoScalingGroups"]]
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise CiError(f"could not read the nodes of cluster {file.environment}: {error}") from error
    return {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in groups}


def allowed_cidrs(file: StackFile, cidrs: Collection[str], client: Any = None) -> list[str]:
    """Those of the CIDRs that the cluster's endpoint allows; none without a cluster; CiError where AWS refuses."""
    if not cidrs:
        return []
    eks = client or boto3.client("eks", region_name=file.region)
    try:
        cluster = eks.describe_cluster(name=file.environment)["cluster"]
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        if getattr(error, "response", {}).get("Error", {}).get("Code") == "ResourceNotFoundException":
            return []
        raise CiError(f"could not read from EKS who may reach cluster {file.environment}: {error}") from error
    public = cluster["resourcesVpcConfig"].get("publicAccessCidrs", [])
    return [cidr for cidr in cidrs if cidr in public]
