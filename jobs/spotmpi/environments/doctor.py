"""What stands in the way of an environment, before money is spent: `spotmpi doctor` as a function."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.concurrent_calls import ConcurrentCalls
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.machine_types import ANY_REGION
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.redaction import redacted
from spotmpi.environments.checks import account, capacity, cluster, leftovers, login, state_bucket, tools, versions
from spotmpi.environments.checks.finding import Check, Finding, Subject, Tell
from spotmpi.environments.checks.live import Live, Look, look
from spotmpi.environments.stack_file import read_stack

LIVE: tuple[Check, ...] = (*versions.CHECKS, *account.CHECKS, *cluster.CHECKS)
_LOGIN = Check("credentials", login.credentials)
CHECKS: tuple[Check, ...] = (
    *login.CHECKS,
    *tools.CHECKS,
    *state_bucket.CHECKS,
    *capacity.CHECKS,
    *leftovers.CHECKS,
)
_PATIENCE = 20  # seconds for a program to tell its version


def doctor(
    stack: str | None = None, aws: Aws | None = None, tell: Tell | None = None, look_at: Look | None = look
) -> tuple[Finding, ...]:
    """Findings about the account, this machine's tools and *stack*, in a fixed order; changes nothing.

    Where the stack's environment is built, AWS and its cluster are asked about it too, unless *look_at* is None.
    A check that fails is a finding itself. InputError only for a stack that has no readable file.
    """
    settings = read_stack(stack) if stack else None
    try:
        aws = aws or open_account(settings.region if settings else None)
    except SpotmpiError as error:
        refused = Finding("credentials", "error", str(error), "see the message")
        return (refused, *_without_account(tell or version_of))
    region = (settings.region if settings else None) or aws.region or ANY_REGION
    subject = Subject(aws, region, settings, tell or version_of)
    who = examined(_LOGIN, subject)
    if any(finding.level == "error" for finding in who):
        return (*who, *_without_account(subject.tell, subject))
    subject, trouble = _with_life(subject, look_at) if look_at else (subject, ())
    with ConcurrentCalls() as questions:
        answers = [questions.ask(partial(examined, check, subject)) for check in (*CHECKS, *LIVE)]
        found = [answer.get() for answer in answers]
    return (*who, *(each for some in found if isinstance(some, tuple) for each in some), *trouble)


def _with_life(subject: Subject, look_at: Look) -> tuple[Subject, tuple[Finding, ...]]:
    """The subject with its live environment, where its cluster exists; or why it could not be looked at."""
    found: list[Live] = []

    def find(subject: Subject) -> tuple[Finding, ...]:
        stack = subject.stack
        if stack is not None and stack.kind != "data" and leftovers.is_built(subject, stack):
            found.append(look_at(stack.stack))
        return ()

    trouble = examined(Check("environment", find), subject)
    return (replace(subject, live=found[0]) if found else subject), trouble


def examined(check: Check, subject: Subject) -> tuple[Finding, ...]:
    """What *check* finds; whatever goes wrong in it is a finding too."""
    try:
        return tuple(check.find(subject))
    except (CallFailed, NotPermitted) as error:
        return (Finding(check.name, "warning", f"could not be checked: {error}", "repeat it when that is mended"),)
    except SpotmpiError as error:
        return (Finding(check.name, "error", str(error)),)
    except Exception as error:
        fault = redacted(" ".join(f"{type(error).__name__}: {error}".split()))
        return (Finding(check.name, "warning", f"could not be checked: {fault}", "a fault of the check: report it"),)


def version_of(command: Sequence[str]) -> str | None:
    """What a program says of its version; None where it is not on PATH or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout or done.stderr


def _without_account(tell: Tell, subject: Subject | None = None) -> tuple[Finding, ...]:
    subject = subject or Subject(Aws(None, None), ANY_REGION, None, tell)
    done = [finding for check in CHECKS if not check.account for finding in examined(check, subject)]
    skipped = ", ".join(check.name for check in CHECKS if check.account)
    return (*done, Finding("account", "warning", f"not checked without credentials: {skipped}", "log in, then repeat"))
