"""Who we are to AWS, and whether the region and zone can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spotmpi.aws import machine_types
from spotmpi.aws.eks_zones import default_second, second_zones, taken_by_eks
from spotmpi.aws.one_zone_storage import one_zone_storage
from spotmpi.environments.checks.finding import Check, Finding, Subject
from spotmpi.environments.stack_file import StackFile


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
    name, enabled = subject.region, machine_types.regions(subject.aws)
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
    """Whether the stack's zones exist in its region, EKS takes them, and the first has the storage that it asks for."""
    stack = subject.stack
    if stack is None:
        return
    zones = machine_types.zones(subject.aws, subject.region)
    yield _first_zone(subject.region, stack, {each.name: each.id for each in zones})
    if stack.kind != "data" and stack.zone is not None:
        yield _second_zone(subject.region, stack, stack.zone, zones)


def _first_zone(region: str, stack: StackFile, ids: Mapping[str, str]) -> Finding:
    if stack.zone is None or stack.zone not in ids:
        known = ", ".join(ids)
        return Finding("zone", "error", f"no zone {stack.zone} in {region}", f"set spotmpi:zone to one of {known}")
    id = ids[stack.zone]
    if stack.kind != "data" and not taken_by_eks(id):
        return Finding("zone", "error", f"EKS takes no subnets in {stack.zone} ({id})", "take another zone")
    if stack.one_zone and one_zone_storage(region, id) is False:
        remedy = "set storage.one_zone to false, or take another zone"
        return Finding("zone", "error", f"EFS has no One Zone storage in {stack.zone} ({id})", remedy)
    return Finding("zone", "ok", f"{stack.zone} is {id}")


def _second_zone(region: str, stack: StackFile, first: str, zones: Sequence[machine_types.Zone]) -> Finding:
    name, fitting = stack.second_zone or default_second(region, first), second_zones(zones, first)
    id = next((each.id for each in zones if each.name == name), None)
    if name in fitting:
        return Finding("second zone", "ok", f"{name} is {id}")
    why = f"there is no zone {name} in {region}" if id is None else f"EKS takes no subnets in {name} ({id})"
    if name == first:
        why = f"{name} is the first zone, and EKS asks for two"
    default = "" if stack.second_zone else ", the default"
    remedy = f"set spotmpi:second_zone to one of {', '.join(fitting)}" if fitting else "take another region"
    return Finding("second zone", "error", why + default, remedy)


CHECKS = (Check("region", region), Check("zone", zone))
