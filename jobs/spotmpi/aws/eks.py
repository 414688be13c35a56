"""EKS clusters, each of which region, account and name identify: where their API answers, and tokens for it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError, CloudError

_ARN = re.compile(r"arn:[\w-]+:eks:(?P<region>[a-z0-9-]+):(?P<account>\d+):cluster/(?P<name>[A-Za-z0-9_-]+)")
# As `aws eks get-token` and aws-iam-authenticator make them: the server takes a token for 15 minutes from its date,
# whatever the signature says of its own expiry.
_PREFIX = "k8s-aws-v1."
_HEADER = "x-k8s-aws-id"
_SIGNED_FOR = 60  # seconds
LIFETIME = 14 * 60.0  # seconds for which a token may be used


@dataclass(frozen=True)
class Cluster:
    """A cluster of an account."""

    region: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"cluster {self.name} in {self.region} of account {self.account}"


@dataclass(frozen=True)
class Endpoint:
    """Where a cluster's API answers, with its authority's certificate (PEM, base64) and the cluster's ARN."""

    server: str
    authority: str
    arn: str


def parse(arn: str) -> Cluster | None:
    """The cluster that an ARN names; None where it names none."""
    match = _ARN.fullmatch(arn)
    return Cluster(**match.groupdict()) if match else None


def require_account(aws: Aws, arn: str) -> None:
    """Raise CloudError where the credentials belong to another account than the cluster with that ARN."""
    cluster = parse(arn)
    assert cluster is not None, arn
    _require_caller(aws, cluster)


def node_groups(aws: Aws, region: str, cluster: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The managed node groups of a cluster by name, each with what EKS says of it."""
    for name in sorted(aws.pages("eks", region, "list_nodegroups", "nodegroups", clusterName=cluster)):
        described = aws.call("eks", region, "describe_nodegroup", clusterName=cluster, nodegroupName=name)
        yield name, described["nodegroup"]


def describe(aws: Aws, cluster: Cluster) -> Endpoint:
    """Where the API of *cluster* answers now; CloudError where EKS has no such cluster in the account, or refuses."""
    try:
        found = aws.call("eks", cluster.region, "describe_cluster", name=cluster.name)["cluster"]
    except CallError as error:
        if error.code != "ResourceNotFoundException":
            raise
        _require_caller(aws, cluster)
        raise CloudError(f"{cluster} does not exist: `spotmpi up STACK` builds an environment") from error
    _require(found["arn"].split(":")[4], cluster)
    if not found.get("endpoint") or not found.get("certificateAuthority", {}).get("data"):
        raise CloudError(f"{cluster} is {found.get('status')}: wait until it is ACTIVE")
    return Endpoint(found["endpoint"], found["certificateAuthority"]["data"], found["arn"])


def _require_caller(aws: Aws, cluster: Cluster) -> None:
    _require(aws.account_id(cluster.region), cluster)


def _require(account: str, cluster: Cluster) -> None:
    if cluster.account != account:
        raise wrong_account(account, f"this is {cluster}", cluster.account)


def wrong_account(account: str, place: str, needed: str) -> CloudError:
    """The error for credentials of *account* where those of the *needed* one are, as *place* says."""
    remedy = f"use a profile or role of account {needed}"
    return CloudError(f"these credentials belong to account {account}, but {place}: {remedy}")


def token(aws: Aws, cluster: Cluster) -> str:
    """A bearer token for the API of *cluster*; CloudError without credentials."""
    url = aws.presign_identity(cluster.region, {_HEADER: cluster.name}, _SIGNED_FOR)
    return _PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def refusal(aws: Aws, cluster: Cluster) -> str:
    """Why the API of *cluster* does not accept a token: the credentials are not valid any more, or have no access."""
    try:
        caller = aws.call("sts", cluster.region, "get_caller_identity")["Arn"]
    except CloudError as error:
        return str(error)
    remedy = "add its role to `cluster.users` of the stack and run `spotmpi up STACK`, or use a role that is there"
    return f"{cluster} has no access entry for {caller}: {remedy}"
