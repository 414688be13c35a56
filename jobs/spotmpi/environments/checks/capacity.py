"""Capacity of the stack's node groups: type offered in the zone, spot quota against `max`."""

from __future__ import annotations

from collections.abc import Iterator

from spotmpi.aws import instances, quotas
from spotmpi.environments.checks.check import Check, Finding, Level, Subject
from spotmpi.environments.stack_file import StackFile, StackGroup


def offers(subject: Subject) -> Iterator[Finding]:
    """Whether each group's type exists, is offered in the zone, and supports the placement group if one is set."""
    stack = subject.stack
    if stack is None or stack.zone is None:
        return
    names = sorted({group.type for group in stack.groups if group.type})
    if not names:
        return
    known = instances.instance_types(subject.aws, subject.region, names)
    offerings = instances.offerings(subject.aws, subject.region, names)
    for group in stack.groups:
        if group.type:
            yield _offer(stack, group, known.get(group.type), (group.type, stack.zone) in offerings)


def spot_quota(subject: Subject) -> Iterator[Finding]:
    """Whether each spot quota of the stack's groups allows the groups' `max`."""
    if subject.stack is None:
        return
    groups = [group for group in subject.stack.groups if group.type and group.max and group.market == "spot"]
    if not groups:
        return
    known = instances.instance_types(subject.aws, subject.region, sorted({group.type or "" for group in groups}))
    used = quotas.vcpus_in_use(subject.aws, subject.region)
    for code in sorted({quotas.quota_code(group.type or "") or "" for group in groups} - {""}):
        counted = [group for group in groups if quotas.quota_code(group.type or "") == code and group.type in known]
        limit = quotas.vcpu_limit(subject.aws, subject.region, code)
        for group in counted:
            yield _quota(subject, group, known[group.type or ""].vcpus, code, limit - used[code])


def _offer(stack: StackFile, group: StackGroup, kind: instances.InstanceType | None, in_zone: bool) -> Finding:
    name = f"group {group.name}"
    command = f"spotmpi zones --types {group.type} --nodes {group.max or 1} --write {stack.stack}"
    if kind is None:
        remedy = "change the group's type"
        return Finding(name, "error", f"{stack.region} has no instance type {group.type}", remedy, command)
    if not in_zone:
        remedy = "use another zone or type"
        return Finding(name, "error", f"{group.type} is not offered in {stack.zone}", remedy, command)
    if group.placement_group and not kind.placement_group:
        remedy = "set the group's placement_group to false"
        return Finding(name, "error", f"{group.type} does not support cluster placement groups", remedy)
    return Finding(name, "ok", f"{group.type} is offered in {stack.zone}")


def _quota(subject: Subject, group: StackGroup, vcpus: int, code: str, free: int) -> Finding:
    assert group.max is not None
    allowed = max(0, free // vcpus)
    message = f"{quotas.NAMES[code]} leaves {max(0, free)} vCPUs: {allowed} of {group.max} x {group.type}"
    if allowed >= group.max:
        return Finding(f"quota of {group.name}", "ok", message)
    command = f"spotmpi zones --types {group.type} --nodes {group.max} --region {subject.region} --request-quota"
    level: Level = "warning" if allowed else "error"
    return Finding(f"quota of {group.name}", level, message, "request an increase, or lower the group's max", command)


CHECKS = (Check("type offered", offers), Check("spot quota", spot_quota))
