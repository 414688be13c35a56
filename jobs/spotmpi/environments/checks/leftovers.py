"""Leftover resources of a former environment of the same name: they bill, or prevent a new one.

Apart from `environments.leftovers`, which searches everything for `down`: these are checks by kind of resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from spotmpi.environments.checks.check import Check, Finding, Subject
from spotmpi.environments.resource_inventory import read_inventory
from spotmpi.environments.resource_kinds import LEFT_OVER, ResourceKind, cluster_exists
from spotmpi.environments.stack_file import StackFile


def _check(kind: ResourceKind, subject: Subject) -> Iterator[Finding]:
    stack = subject.stack
    if stack is None or stack.kind != "compute":  # persistent storage is not a leftover
        return
    title = f"leftover {kind.names}"
    if is_built(subject, stack):
        yield Finding(title, "ok", f"{stack.environment} is built: tagged resources are in use")
        return
    account = subject.aws.account_id(subject.region)
    ids = kind.left_over(subject.aws, read_inventory(stack.environment, subject.region, account))
    if not ids:
        yield Finding(title, "ok", "none")
        return
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    remedy = f"{kind.why}: delete them, or run `spotmpi down {stack.stack}` if nothing is needed"
    command = kind.deletion(ids[0], subject.region)
    yield Finding(title, "warning", f"{len(ids)} of a former {stack.environment}: {shown}", remedy, command)


def is_built(subject: Subject, stack: StackFile) -> bool:
    """Whether the stack's cluster exists."""
    return cluster_exists(subject.aws, subject.region, stack.environment)


CHECKS = tuple(Check(f"leftover {kind.names}", partial(_check, kind)) for kind in LEFT_OVER)
