"""The control plane's log group: EKS makes it again, without tags, when log lines arrive after its deletion.

Its service-linked role does so whatever the cluster's role may do (terraform-aws-eks#2446, #2763); a new environment of
the same name then can't make its own.
"""

from __future__ import annotations

from collections.abc import Callable

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed

_LOOKS = 6
_PAUSE = 10.0  # seconds between looks
WATCH = _PAUSE * (_LOOKS - 1)  # seconds


def name_of(environment: str) -> str:
    """The log group that EKS writes to for the cluster of that name."""
    return f"/aws/eks/{environment}/cluster"


def exists(aws: Aws, region: str, environment: str) -> bool:
    """Whether the environment's log group exists."""
    name = name_of(environment)
    groups = aws.pages("logs", region, "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    return any(each["logGroupName"] == name for each in groups)


def delete(aws: Aws, region: str, environment: str) -> None:
    """Delete the environment's log group; one that is gone already is no error."""
    try:
        aws.call("logs", region, "delete_log_group", logGroupName=name_of(environment))
    except CallFailed as error:
        if error.code != "ResourceNotFoundException":
            raise


def keep_deleted(aws: Aws, region: str, environment: str, sleep: Callable[[float], None]) -> int:
    """Delete it each time that it exists, looking again for WATCH seconds; gives how often it did."""
    deleted = 0
    for look in range(_LOOKS):
        if look:
            sleep(_PAUSE)
        if exists(aws, region, environment):
            delete(aws, region, environment)
            deleted += 1
    return deleted
