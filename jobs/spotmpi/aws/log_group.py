"""The control plane's log group: EKS recreates it, without tags, when log lines arrive after its deletion.

EKS's service-linked role does so whatever the permissions of the cluster's role (terraform-aws-eks#2446, #2763); a new
environment of the same name then can't create its own.
"""

from __future__ import annotations

from collections.abc import Callable

from spotmpi.aws.account import Aws

_CHECKS = 6
_INTERVAL = 10.0  # seconds between checks
WATCH_TIME = _INTERVAL * (_CHECKS - 1)  # seconds


def name_of(environment: str) -> str:
    """The log group of the EKS cluster with that name."""
    return f"/aws/eks/{environment}/cluster"


def with_prefix(aws: Aws, region: str, prefix: str) -> set[str]:
    """The names of the log groups that begin like that."""
    groups = aws.pages("logs", region, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    return {str(each["logGroupName"]) for each in groups}


def exists(aws: Aws, region: str, environment: str) -> bool:
    """Whether the environment's log group exists."""
    return name_of(environment) in with_prefix(aws, region, name_of(environment))


def delete(aws: Aws, region: str, environment: str) -> None:
    """Delete the environment's log group; no error if it does not exist."""
    absent = {"ResourceNotFoundException"}
    aws.find("logs", region, "delete_log_group", absent, logGroupName=name_of(environment))


def keep_deleted(aws: Aws, region: str, environment: str, sleep: Callable[[float], None]) -> int:
    """Delete it whenever it exists, checking for WATCH_TIME seconds; returns the number of deletions."""
    deleted = 0
    for check in range(_CHECKS):
        if check:
            sleep(_INTERVAL)
        if exists(aws, region, environment):
            delete(aws, region, environment)
            deleted += 1
    return deleted
