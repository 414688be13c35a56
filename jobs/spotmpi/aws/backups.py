"""Recovery points of AWS Backup, which outlive the file system that they are of."""

from __future__ import annotations

from collections.abc import Collection

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo, counted


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


def exception(aws: Aws, region: str, file_systems: Collection[str]) -> str:
    """What a deletion of file systems leaves in AWS Backup, as its question says it; empty where that is unknown."""
    try:
        account = aws.account_id(region)
        number = sum(len(recovery_points(aws, region, account, each)) for each in file_systems)
    except CallError:  # which `report` says
        return ""
    points = counted(number, "recovery point")
    return f" except {points} in AWS Backup, billed by the GB until they expire" if number else ""


def report(aws: Aws, region: str, file_systems: Collection[str], echo: Echo) -> None:
    """Name the recovery points of deleted file systems, which AWS Backup deletes at the end of their time."""
    try:
        account = aws.account_id(region) if file_systems else ""
        for each in sorted(file_systems):
            if points := recovery_points(aws, region, account, each):
                arn = file_system_arn(aws, region, account, each)
                command = f"aws backup list-recovery-points-by-resource --resource-arn {arn} --region {region}"
                stays = f"{counted(len(points), 'recovery point')} of {each} in AWS Backup, which `{command}` lists"
                how = "docs/cloud.md#backups says how to restore or delete them"
                echo(f"not deleted, and billed by the GB until they expire: {stays}; {how}")
    except SpotmpiError as error:
        echo(f"backups can't be listed: {error}")
