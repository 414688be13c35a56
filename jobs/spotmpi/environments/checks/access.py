"""Access to the account: credentials, region, zones, and the bucket of Pulumi's state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotmpi.aws import state_bucket
from spotmpi.aws import zones as aws_zones
from spotmpi.aws.account import ANY_REGION
from spotmpi.aws.errors import RegionNotEnabled
from spotmpi.aws.zones import Zone, default_second_zone, eks_supports, has_one_zone_storage, second_zones
from spotmpi.environments.checks.check import Check, Finding, Subject
from spotmpi.environments.stack_file import StackFile

_BUCKET = "state bucket"


def credentials(subject: Subject) -> Iterator[Finding]:
    """Whether the credentials work, and belong to the stack's account."""
    identity = _identity(subject)
    account, arn = identity["Account"], identity["Arn"]
    expected = subject.stack.account if subject.stack else None
    if expected and expected != account:
        yield Finding(
            "credentials",
            "error",
            f"these credentials belong to account {account}, the stack to {expected}",
            "use a profile or role of the stack's account",
            "aws configure list-profiles",
        )
    elif arn.endswith(":root"):
        yield Finding(
            "credentials",
            "warning",
            f"account {account} as root user",
            "use a role instead: the root user's permissions can't be limited",
        )
    else:
        yield Finding("credentials", "ok", f"account {account} as {arn}")


def _identity(subject: Subject) -> Mapping[str, Any]:
    """Who the credentials belong to, by another region where that of the subject is not enabled, as `region` says."""
    try:
        return subject.aws.call("sts", subject.region, "get_caller_identity")
    except RegionNotEnabled:
        if aws_zones.regions(subject.aws).get(subject.region):
            raise
        return subject.aws.call("sts", ANY_REGION, "get_caller_identity")


def region(subject: Subject) -> Iterator[Finding]:
    """Whether the region exists and is enabled."""
    name, enabled = subject.region, aws_zones.regions(subject.aws)
    if name not in enabled:
        yield Finding("region", "error", f"AWS has no region {name}", "change aws:region in the stack's file")
    elif not enabled[name]:
        command = f"aws account enable-region --region-name {name}"
        yield Finding(
            "region", "error", f"{name} is not enabled in this account", "enable it, or use another region", command
        )
    else:
        yield Finding("region", "ok", f"{name} is enabled")


def zone(subject: Subject) -> Iterator[Finding]:
    """Whether the stack's zones exist in its region, EKS supports them, and the first has the storage that it needs."""
    stack = subject.stack
    if stack is None or stack.kind == "account":
        return
    zones = aws_zones.zones(subject.aws, subject.region)
    ids = {each.name: each.id for each in zones}
    for name in stack.zones or (None,):
        yield _zone(subject.region, stack, name, ids)
    if stack.kind != "data" and stack.zone is not None:
        yield _second_zone(subject.region, stack, stack.zone, zones)


def _zone(region: str, stack: StackFile, name: str | None, ids: Mapping[str, str]) -> Finding:
    if name is None or name not in ids:
        known = ", ".join(ids)
        return Finding("zone", "error", f"{region} has no zone {name}", f"set spotmpi:zones to some of {known}")
    id = ids[name]
    if stack.kind != "data" and not eks_supports(id):
        return Finding("zone", "error", f"EKS does not support zone {name} ({id})", "use another zone")
    if name == stack.zone and stack.one_zone and has_one_zone_storage(region, id) is False:
        remedy = "set storage.one_zone to false, or use another zone"
        return Finding("zone", "error", f"EFS has no One Zone storage in {name} ({id})", remedy)
    return Finding("zone", "ok", f"{name} is {id}")


def _second_zone(region: str, stack: StackFile, first: str, zones: Sequence[Zone]) -> Finding:
    name, supported = stack.second_zone or default_second_zone(region, first), second_zones(zones, first)
    id = next((each.id for each in zones if each.name == name), None)
    if name in supported:
        return Finding("second zone", "ok", f"{name} is {id}")
    reason = f"{region} has no zone {name}" if id is None else f"EKS does not support zone {name} ({id})"
    if name == first:
        reason = f"{name} is the first zone; EKS needs a second one"
    default = "" if stack.second_zone else ", the default"
    remedy = f"set spotmpi:second_zone to one of {', '.join(supported)}" if supported else "use another region"
    return Finding("second zone", "error", reason + default, remedy)


def pulumi_state(subject: Subject) -> Iterator[Finding]:
    """Whether the bucket in PULUMI_BACKEND_URL, if any, exists, is private and versioned."""
    bucket = state_bucket.from_variables(os.environ)
    if bucket is None:
        return
    status = state_bucket.status(subject.aws, subject.region, bucket)
    if status is None:
        remedy = "`spotmpi up STACK` offers to create it"
        yield Finding(_BUCKET, "warning", f"bucket {bucket.name} for Pulumi's state does not exist", remedy)
        return
    command_line = f"aws s3api {{}} --bucket {bucket.name} "
    if not status.private:
        settings = ",".join(f"{key}=true" for key in state_bucket.PRIVATE)
        command = command_line.format("put-public-access-block") + f"--public-access-block-configuration {settings}"
        yield Finding(_BUCKET, "warning", f"{bucket.name} does not block public access", "block it", command)
    if not status.versioned:
        command = command_line.format("put-bucket-versioning") + "--versioning-configuration Status=Enabled"
        remedy = "turn versioning on, so that a broken state can be restored"
        yield Finding(_BUCKET, "warning", f"{bucket.name} is not versioned", remedy, command)
    if status.private and status.versioned:
        yield Finding(_BUCKET, "ok", f"{bucket.name} is private and versioned")


REGION = Check("region", region)
CHECKS = (REGION, Check("zone", zone))
STATE_CHECKS = (Check(_BUCKET, pulumi_state),)
