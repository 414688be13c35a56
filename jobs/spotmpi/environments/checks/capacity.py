"""Whether the stack's groups can have their nodes: type offered in the zone, spot quota against `max`."""

from __future__ import annotations

from collections.abc import Iterator

from spotmpi.aws import machine_types, quotas
from spotmpi.environments.checks.finding import Check, Finding, Level, Subject
from spotmpi.environments.stack_file import StackFile, StackGroup


def offers(subject: Subject) -> Iterator[Finding]:
    """For each group whether its type exists, is offered in the zone and takes a placement group where one is set."""
    stack = subject.stack
    if stack is None or stack.zone is None:
        return
    names = sorted({group.type for group in stack.groups if group.type})
    if not names:
        return
    known = machine_types.machine_types(subject.aws, subject.region, names)
    there = machine_types.offered(subject.aws, subject.region, names)
    for group in stack.groups:
        if group.type:
            yield _offer(stack, group, known.get(group.type), (group.type, stack.zone) in there)


def spot_quota(subject: Subject) -> Iterator[Finding]:
    """For each spot quota that the stack's groups count against, whether it allows every group its `max`."""
    if subject.stack is None:
        return
    groups = [group for group in subject.stack.groups if group.type and group.max and group.market == "spot"]
    if not groups:
        return
    known = machine_types.machine_types(subject.aws, subject.region, sorted({group.type or "" for group in groups}))
    used = quotas.running(subject.aws, subject.region)
    for code in sorted({quotas.quota_code(group.type or "") or "" for group in groups} - {""}):
        counted = [group for group in groups if quotas.quota_code(group.type or "") == code and group.type in known]
        limit = quotas.limit(subject.aws, subject.region, code)
        for group in counted:
            yield _quota(subject, group, known[group.type or ""].vcpus, code, limit - used[code])


def _offer(stack: StackFile, group: StackGroup, kind: machine_types.MachineType | None, there: bool) -> Finding:
    name = f"group {group.name}"
    elsewhere = f"spotmpi zones --types {group.type} --nodes {group.max or 1} --write {stack.stack}"
    if kind is None:
        remedy = "change the group's type"
        return Finding(name, "error", f"there is no type {group.type} in {stack.region}", remedy, elsewhere)
    if not there:
        remedy = "take another zone or type"
        return Finding(name, "error", f"{group.type} is not offered in {stack.zone}", remedy, elsewhere)
    if group.placement_group and not kind.placement_group:
        remedy = "set the group's placement_group to false"
        return Finding(name, "error", f"{group.type} takes no cluster placement group", remedy)
    return Finding(name, "ok", f"{group.type} is offered in {stack.zone}")


def _quota(subject: Subject, group: StackGroup, vcpus: int, code: str, free: int) -> Finding:
    assert group.max is not None
    allowed = max(0, free // vcpus)
    fact = f"{quotas.NAMES[code]} leaves {max(0, free)} vCPUs: {allowed} of {group.max} x {group.type}"
    if allowed >= group.max:
        return Finding(f"quota of {group.name}", "ok", fact)
    command = f"spotmpi zones --types {group.type} --nodes {group.max} --region {subject.region} --request-quota"
    level: Level = "warning" if allowed else "error"
    return Finding(f"quota of {group.name}", level, fact, "ask for more, or lower the group's max", command)


CHECKS = (Check("type offered", offers), Check("spot quota", spot_quota))
