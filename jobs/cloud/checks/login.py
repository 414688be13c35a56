"""Who we are to AWS, and whether the region and zone can be used."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.cloud import machines
from jobs.cloud.checks.finding import Check, Finding, Subject
from jobs.cloud.one_zone import one_zone_storage


def credentials(subject: Subject) -> Iterator[Finding]:
    """Whether AWS knows us, and whether the account is the stack's."""
    who = subject.aws.call("sts", subject.region, "get_caller_identity")
    account, arn = who["Account"], who["Arn"]
    wanted = subject.stack.account if subject.stack else None
    if wanted and wanted != account:
        yield Finding(
            "credentials",
            "error",
            f"these credentials are of account {account}, the stack belongs to {wanted}",
            "take a profile or role of the right account",
            "aws configure list-profiles",
        )
    elif arn.endswith(":root"):
        yield Finding(
            "credentials", "warning", f"account {account} as its root user", "use a role instead: root can't be limited"
        )
    else:
        yield Finding("credentials", "ok", f"account {account} as {arn}")


def region(subject: Subject) -> Iterator[Finding]:
    """Whether the region exists and is enabled."""
    name, enabled = subject.region, machines.regions(subject.aws)
    if name not in enabled:
        yield Finding("region", "error", f"there is no AWS region {name}", "change aws:region in the stack's file")
    elif not enabled[name]:
        command = f"aws account enable-region --region-name {name}"
        yield Finding(
            "region", "error", f"{name} is not enabled in this account", "enable it, or take another", command
        )
    else:
        yield Finding("region", "ok", f"{name} is enabled")


def zone(subject: Subject) -> Iterator[Finding]:
    """Whether the stack's zone exists in its region, with the storage that the stack asks for."""
    stack = subject.stack
    if stack is None:
        return
    ids = {each.name: each.id for each in machines.zones(subject.aws, subject.region)}
    if stack.zone not in ids:
        known = ", ".join(ids)
        yield Finding(
            "zone", "error", f"no zone {stack.zone} in {subject.region}", f"set spotmpi:zone to one of {known}"
        )
    elif stack.one_zone and one_zone_storage(subject.region, ids[stack.zone]) is False:
        remedy = "set storage.one_zone to false, or take another zone"
        yield Finding("zone", "error", f"EFS has no One Zone storage in {stack.zone} ({ids[stack.zone]})", remedy)
    else:
        yield Finding("zone", "ok", f"{stack.zone} is {ids[stack.zone]}")


CHECKS = (Check("region", region), Check("zone", zone))
