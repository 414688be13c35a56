"""Who may reach the Kubernetes API of a stack's cluster, as AWS knows it."""

from collections.abc import Collection
from typing import Any

import boto3
import botocore.exceptions

from infra.ci.errors import CiError
from infra.ci.stack_file import StackFile


def allowed(file: StackFile, cidrs: Collection[str], client: Any = None) -> list[str]:
    """Those of the CIDRs that the cluster's endpoint lets in; none without a cluster; CiError where AWS refuses."""
    if not cidrs:
        return []
    eks = client or boto3.client("eks", region_name=file.region)
    try:
        cluster = eks.describe_cluster(name=file.environment)["cluster"]
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise CiError(f"could not ask EKS who may reach cluster {file.environment}: {error}") from error
        return []
    open_to = cluster["resourcesVpcConfig"].get("publicAccessCidrs", [])
    return [cidr for cidr in cidrs if cidr in open_to]
