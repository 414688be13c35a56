"""What a former environment of the same name left behind: it bills, or stands in the way of a new one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from spotmpi.environments import ledger
from spotmpi.environments.checks.finding import Check, Finding, Subject
from spotmpi.environments.inventory import KINDS, Kind, cluster_exists
from spotmpi.environments.stack_file import StackFile


def _check(kind: Kind, subject: Subject) -> Iterator[Finding]:
    stack = subject.stack
    if stack is None or stack.kind == "data":  # persistent storage is there to stay
        return
    title = f"leftover {kind.what}"
    if is_built(subject, stack):
        yield Finding(title, "ok", f"{stack.environment} is built: what carries its tag is in use")
        return
    ids = kind.find(subject.aws, ledger.read(stack.environment, subject.region))
    if not ids:
        yield Finding(title, "ok", "none")
        return
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    command = kind.command.format(id=ids[0]) + f" --region {subject.region}"
    remedy = f"{kind.remedy}: if nothing in them is needed, `spotmpi down {stack.stack}`, else delete them"
    yield Finding(title, "warning", f"{len(ids)} of a former {stack.environment}: {shown}", remedy, command)


def is_built(subject: Subject, stack: StackFile) -> bool:
    """Whether the stack's cluster exists."""
    return cluster_exists(subject.aws, subject.region, stack.environment)


CHECKS = tuple(Check(f"leftover {kind.what}", partial(_check, kind)) for kind in KINDS)
