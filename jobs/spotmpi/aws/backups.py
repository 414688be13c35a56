"""Recovery points of AWS Backup, which outlive the file system that they are of."""

from __future__ import annotations

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError


def file_system_arn(aws: Aws, region: str, account: str, file_system: str) -> str:
    """The ARN of an EFS file system, by which AWS Backup knows it."""
    return f"arn:{aws.partition(region)}:elasticfilesystem:{region}:{account}:file-system/{file_system}"


def recovery_points(aws: Aws, region: str, account: str, file_system: str) -> list[str]:
    """The ARNs of a file system's recovery points in all vaults of *region*, whether it still exists or not."""
    arn = file_system_arn(aws, region, account, file_system)
    try:
        method, key = "list_recovery_points_by_resource", "RecoveryPoints"
        points = aws.pages("backup", region, method, key, ResourceArn=arn)
    except CallError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return []
    return [each["RecoveryPointArn"] for each in points if each.get("Status") != "DELETING"]
