"""What follows from a zone plan when it is asked for: a quota request after a yes, a changed stack file."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from spotmpi.aws.quotas import NAMES, Increase
from spotmpi.cli.view import say
from spotmpi.core.errors import input_error
from spotmpi.environments.stack_file import read_stack, write_choice
from spotmpi.environments.zones.comparison import ZonePlan, quota_to_ask_for, request_quota
from spotmpi.environments.zones.rows import Row


def request(plan: ZonePlan, number: int, yes: bool) -> Increase | None:
    """Ask AWS for the quota that a row lacks, after a yes; None where it suffices or is asked for already."""
    row = _row(plan, number)
    vcpus = quota_to_ask_for(row)
    if vcpus is None:
        say(
            f"the quota suffices for {plan.nodes} x {row.type} in {row.region}: {row.quota} vCPUs, {row.running} in use"
        )
        return None
    for each in plan.increases:
        if (each.region, each.code) == (row.region, row.quota_code):
            say(f"{each.vcpus} vCPUs are asked for already ({each.status}, request {each.id}); AWS takes one at a time")
            return None
    what = f"{NAMES[row.quota_code or '']} in {row.region}: {row.quota} -> {vcpus} vCPUs"
    if not yes:
        if not sys.stdin.isatty():
            raise input_error("--yes", None, f"say --yes to ask AWS for {what}")
        typer.confirm(f"Ask AWS for {what}?", abort=True, err=True)
    made = request_quota(row)
    say(f"asked for {what}" + (f" (request {made.id}, {made.status})" if made else ""))
    return made


def write(plan: ZonePlan, number: int, stack: str, group: str | None) -> Path:
    """Put a row into a stack's file, and say what changed there and what does not fit yet."""
    row = _row(plan, number)
    before = read_stack(stack)
    path = write_choice(stack, row, group)
    after = read_stack(stack)
    say(f"{path}: region {row.region}, zone {row.zone}, type {row.type} (row {number}: {_because(row, plan)})")
    if after.second_zone not in (None, before.second_zone):
        say(f"second zone {after.second_zone}: EKS asks for one besides, and takes this one")
    if before.zone not in (None, row.zone):
        say(f"it was {before.zone}: where {stack} is built already, `pulumi up` would replace it all")
    if before.keep:
        say(f"its storage is in the stack {stack}-data: that file has to name the same zone")
    for each in after.groups:
        if each.type == row.type and each.max is not None and each.max < plan.nodes:
            say(f"group {each.name} has max {each.max}: raise it to {plan.nodes} for {plan.nodes} nodes")
    return path


def _row(plan: ZonePlan, number: int) -> Row:
    if not 1 <= number <= len(plan.rows):
        raise input_error("--row", number, f"there are rows 1 to {len(plan.rows)}")
    return plan.rows[number - 1]


def _because(row: Row, plan: ZonePlan) -> str:
    return row.lost or f"best of {len(plan.rows)}"
