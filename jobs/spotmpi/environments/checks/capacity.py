"""Capacity for the stack: types and their prices in each zone, Capacity Blocks, quotas, and room for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from spotmpi.aws import instances, prices, quotas
from spotmpi.aws.capacity_blocks import USABLE, CapacityBlock, capacity_blocks
from spotmpi.aws.errors import CallError
from spotmpi.core.names import CAPACITY_BLOCK
from spotmpi.core.wording import counted
from spotmpi.environments.checks.check import Check, Finding, Level, Subject
from spotmpi.environments.resource_kinds import ADDRESS, GATEWAY, NETWORK, TAG
from spotmpi.environments.stack_file import SYSTEM, StackFile, StackGroup


def offers(subject: Subject) -> Iterator[Finding]:
    """Whether each group's type exists, is offered in its zones and at what price, and supports its placement group."""
    stack = subject.stack
    if stack is None or stack.zone is None:
        return
    names = sorted({group.type for group in stack.groups if group.type})
    if not names:
        return
    known = instances.instance_types(subject.aws, subject.region, names)
    offerings = instances.offerings(subject.aws, subject.region, names)
    price = _prices(subject, names)
    for group in stack.groups:
        for zone in (group.zones or stack.zones) if group.type else ():
            offered = (group.type, zone) in offerings
            yield _offer(stack, group, zone, known.get(group.type or ""), price(group, zone) if offered else None)


def _prices(subject: Subject, machines: list[str]) -> Callable[[StackGroup, str], str]:
    """What gives the price of a group's nodes in a zone in words, without their disks; nothing where AWS refuses."""
    aws, region, spot, listed = subject.aws, subject.region, dict[tuple[str, str], prices.SpotPrice](), {}
    with suppress(CallError):
        spot = prices.spot_prices(aws, region, machines, datetime.now(UTC))
    bought = {group.market for group in subject.stack.groups} if subject.stack else set()
    with suppress(CallError):
        if quotas.ON_DEMAND in bought:
            listed = {machine: prices.on_demand_price(aws, region, machine) for machine in machines}

    def of(group: StackGroup, zone: str) -> str:
        if group.market == CAPACITY_BLOCK:
            return ", in a Capacity Block that is paid in advance"
        if group.market == quotas.ON_DEMAND:
            price = listed.get(group.type or "")
        else:
            price = found.now if (found := spot.get((group.type or "", zone))) else None
        return "" if price is None else f", {group.market} for ${price:.4g} an hour"

    return of


def blocks(subject: Subject) -> Iterator[Finding]:
    """Whether the Capacity Block of each group that has one exists, lasts, and is as the group says."""
    stack = subject.stack
    groups = [group for group in stack.groups if group.market == CAPACITY_BLOCK] if stack else []
    if stack is None or not groups:
        return
    bought = capacity_blocks(subject.aws, subject.region)
    for group in groups:
        name, block = f"Capacity Block of {group.name}", bought.get(group.reservation or "")
        if block is None:
            known = ", ".join(f"{each.id} ({each})" for each in bought.values() if each.state in USABLE)
            remedy = f"set the group's reservation to one that was bought: {known or 'the account has none here'}"
            yield Finding(name, "error", f"{subject.region} has no Capacity Block {group.reservation}", remedy)
            continue
        problems = [*_differences(stack, group, block)]
        yield from (Finding(name, level, f"{block.id}: {message}", remedy) for level, message, remedy in problems)
        if not problems:
            yield Finding(name, "ok", f"{block.id}: {block}")


def _differences(stack: StackFile, group: StackGroup, block: CapacityBlock) -> Iterator[tuple[Level, str, str]]:
    """What of a group is not as in its Capacity Block, each with the remedy."""
    if block.state not in USABLE:
        remedy = "buy another and set the group's reservation to it, or remove the group"
        yield "warning", f"{block.state}: it was there {block.period}, so no node starts in it", remedy
    if group.type != block.type:
        yield "error", f"has {block.type}, not {group.type}", f"set the group's type to {block.type}"
    if (zones := list(group.zones or stack.zones)) != [block.zone]:
        where = f"set the group's `zones` to [{block.zone}]"
        where += "" if block.zone in stack.zones else ", and add it to `zones` of the stack"
        yield "error", f"is in {block.zone}, not in {', '.join(zones)}", where
    if (group.max or 0) > block.nodes:
        yield "error", f"has {counted(block.nodes, 'node')}, not {group.max}", f"set the group's max to {block.nodes}"


def quota(subject: Subject) -> Iterator[Finding]:
    """Whether each quota of the stack's groups and system nodes allows their largest number of nodes."""
    stack = subject.stack
    if stack is None or stack.kind != "compute":
        return
    groups = [group for group in (_while_updated(stack.system), *stack.groups) if group.type and group.max]
    known = instances.instance_types(subject.aws, subject.region, sorted({group.type or "" for group in groups}))
    for market in (quotas.SPOT, quotas.ON_DEMAND):
        bought = [group for group in groups if group.market == market and group.type in known]
        codes = {group: quotas.quota_code(group.type or "", market) for group in bought}
        # What the environment runs already is part of what its groups need.
        own = (TAG, stack.environment)
        used = quotas.vcpus_in_use(subject.aws, subject.region, market, own) if bought else {}
        limits = {code: quotas.limit(subject.aws, subject.region, code) for code in codes.values() if code}
        for group, code in codes.items():
            if code:
                # The system nodes run whatever else does, and most share their quota with on-demand groups.
                others = [each for each in codes if each.name == SYSTEM != group.name and codes[each] == code]
                taken = sum(known[each.type or ""].vcpus * (each.max or 0) for each in others) + used.get(code, 0)
                finding = _quota(subject, group, known[group.type or ""].vcpus, code, limits[code], taken)
                zones = len(group.zones or stack.zones)
                shared = f" in a zone; its {zones} zones share the quota" * (zones > 1 and group.name != SYSTEM)
                yield replace(finding, message=finding.message + shared)


def network(subject: Subject) -> Iterator[Finding]:
    """Whether each quota of networks has room for the one of the environment, whose own is not counted."""
    stack = subject.stack
    if stack is None or stack.kind != "compute":
        return
    own = {"Key": TAG, "Value": stack.environment}
    for kind in (NETWORK, GATEWAY, *([ADDRESS] if stack.design.private else [])):
        assert kind.quota is not None
        service, code = kind.quota
        allowed = quotas.limit(subject.aws, subject.region, code, service)
        used = sum(own not in each.get("Tags", ()) for each in kind.list(subject.aws, subject.region))
        message = f"{used} of {allowed} {kind.names} in {subject.region} are in use by others"
        if used < allowed:
            yield Finding(f"quota of {kind.names}", "ok", message)
            continue
        command = quotas.increase_command(subject.region, service, code, used + 1)
        remedy = "request an increase, or delete one that nobody needs: the environment has its own"
        yield Finding(f"quota of {kind.names}", "error", message, remedy, command)


def _while_updated(system: StackGroup) -> StackGroup:
    """The system group at its largest: EKS starts two more nodes to replace a single one, and none otherwise."""
    return replace(system, max=3) if system.max == 1 else system


def _offer(
    stack: StackFile, group: StackGroup, zone: str, kind: instances.InstanceType | None, price: str | None
) -> Finding:
    """What is found of a group in a zone; *price* in words, None where the zone has no such type."""
    name = f"group {group.name}"
    command = f"spotmpi zones --types {group.type} --nodes {group.max or 1} --write {stack.stack}"
    if kind is None:
        remedy = "change the group's type"
        return Finding(name, "error", f"{stack.region} has no instance type {group.type}", remedy, command)
    if price is None:
        remedy = "use another zone or type"
        if len(stack.zones) > 1:
            remedy += ", or set the group's `zones` to those that offer it"
        return Finding(name, "error", f"{group.type} is not offered in {zone}", remedy, command)
    if group.placement_group and not kind.placement_group:
        remedy = "set the group's placement_group to false"
        return Finding(name, "error", f"{group.type} does not support cluster placement groups", remedy)
    return Finding(name, "ok", f"{group.type} is offered in {zone}{price}")


def _quota(subject: Subject, group: StackGroup, vcpus: int, code: str, limit: int, used: int) -> Finding:
    assert group.max is not None
    free = max(0, limit - used)
    allowed = free // vcpus
    message = f"{quotas.NAMES[code]} leaves {counted(free, 'vCPU')}: {allowed} of {group.max} x {group.type}"
    if allowed >= group.max:
        return Finding(f"quota of {group.name}", "ok", message)
    command = f"spotmpi zones --types {group.type} --nodes {group.max} --region {subject.region} --request-quota"
    if group.market == quotas.ON_DEMAND:
        command = quotas.increase_command(subject.region, quotas.SERVICE, code, used + group.max * vcpus)
    level: Level = "warning" if allowed else "error"
    fewer = "use fewer system nodes" if group.name == SYSTEM else "lower the group's max"
    return Finding(f"quota of {group.name}", level, message, f"request an increase, or {fewer}", command)


CHECKS = (
    Check("type offered", offers),
    Check("Capacity Blocks", blocks),
    Check("quota", quota),
    Check("network quota", network),
)
