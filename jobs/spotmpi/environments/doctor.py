"""The checks before money is spent on an environment: `spotmpi doctor` as a function."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spotmpi.aws.account import ANY_REGION, Aws, open_account
from spotmpi.aws.concurrent_calls import ConcurrentCalls
from spotmpi.aws.errors import CallError
from spotmpi.aws.zones import region_problem
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.redaction import redacted
from spotmpi.environments.checks import access, account, capacity, cluster, leftovers, tools
from spotmpi.environments.checks.check import Check, Finding, LiveEnvironment, OpenLive, Subject, ToolOutput
from spotmpi.environments.location import require_location
from spotmpi.environments.stack_file import read_stack

LIVE_CHECKS: tuple[Check, ...] = (*account.CHECKS, *cluster.CHECKS)
_CREDENTIALS = Check("credentials", access.credentials)
CHECKS: tuple[Check, ...] = (
    *access.CHECKS,
    *tools.CHECKS,
    *access.STATE_CHECKS,
    *account.PLAN_CHECKS,
    *capacity.CHECKS,
    *leftovers.CHECKS,
)
_TIMEOUT = 20  # seconds for a tool to print its version


def open_stack(stack: str) -> LiveEnvironment:
    """The built environment of *stack*, from Pulumi's outputs."""
    from spotmpi.backends.kubernetes.client.view import ClusterView
    from spotmpi.core import environment

    opened = environment.of_stack(stack)
    return LiveEnvironment(opened, ClusterView(opened.context))


def doctor(
    stack: str | None = None,
    aws: Aws | None = None,
    tool_output: ToolOutput | None = None,
    open_live: OpenLive | None = open_stack,
) -> tuple[Finding, ...]:
    """Findings about the account, this machine's tools and *stack*, in a fixed order; changes nothing.

    Where the stack's environment is built, it is checked in AWS and in its cluster too, unless *open_live* is None.
    A check that fails is a finding itself. InputError only for a stack without a readable file.
    """
    settings = read_stack(stack) if stack else None
    try:
        aws = aws or open_account(settings.region if settings else None)
    except SpotmpiError as error:
        refused = Finding("credentials", "error", str(error))
        return (refused, *_without_account(tool_output or run_tool))
    region = (settings.region if settings else None) or aws.region or ANY_REGION
    subject = Subject(aws, region, settings, tool_output or run_tool)
    if problem := region_problem(region):
        unknown = Finding("region", "error", f"{region} is {problem}")
        return (unknown, *_without_account(subject.tool_output, subject, "a region", "correct it, then repeat"))
    identity = run_check(_CREDENTIALS, subject)
    if any(finding.level == "error" for finding in identity):
        return (*identity, *_without_account(subject.tool_output, subject))
    place = run_check(access.REGION, subject)
    if any(finding.level == "error" for finding in place):
        return (
            *identity,
            *place,
            *_without_account(subject.tool_output, subject, "a region", "correct it, then repeat"),
        )
    subject, problems = _with_live(subject, open_live) if open_live else (subject, ())
    with ConcurrentCalls() as calls:
        checks = [check for check in (*CHECKS, *LIVE_CHECKS) if check is not access.REGION]
        pending = [calls.submit(partial(run_check, check, subject)) for check in checks]
        results = [each.result() for each in pending]
    return (
        *identity,
        *place,
        *(each for findings in results if isinstance(findings, tuple) for each in findings),
        *problems,
    )


def _with_live(subject: Subject, open_live: OpenLive) -> tuple[Subject, tuple[Finding, ...]]:
    """The subject with its built environment, where its cluster exists; or a finding why it can't be opened."""
    environments: list[LiveEnvironment] = []

    def find(subject: Subject) -> tuple[Finding, ...]:
        stack = subject.stack
        if stack is not None and stack.kind == "compute" and leftovers.is_built(subject, stack):
            live = open_live(stack.stack)
            require_location(subject.aws, subject.region, live.environment)
            environments.append(live)
        return ()

    problems = run_check(Check("environment", find), subject)
    return (replace(subject, live=environments[0]) if environments else subject), problems


def run_check(check: Check, subject: Subject) -> tuple[Finding, ...]:
    """The findings of *check*; an error in it is a finding too."""
    try:
        return tuple(check.find(subject))
    except (CallError, NotPermitted) as error:
        return (Finding(check.name, "warning", f"could not be checked: {error}", "fix that, then repeat the command"),)
    except SpotmpiError as error:
        return (Finding(check.name, "error", str(error)),)
    except Exception as error:
        message = redacted(" ".join(f"{type(error).__name__}: {error}".split()))
        return (
            Finding(
                check.name, "warning", f"could not be checked: {message}", "an error in the check itself: report it"
            ),
        )


def run_tool(command: Sequence[str]) -> str | None:
    """The output of a tool, empty where it fails to run; None where the command is not found."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_TIMEOUT, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout or result.stderr


def _without_account(
    tool_output: ToolOutput,
    subject: Subject | None = None,
    missing: str = "credentials",
    remedy: str = "log in, then repeat",
) -> tuple[Finding, ...]:
    subject = subject or Subject(Aws(None, None), ANY_REGION, None, tool_output)
    findings = [finding for check in CHECKS if not check.account for finding in run_check(check, subject)]
    skipped = ", ".join(check.name for check in CHECKS if check.account)
    return (
        *findings,
        Finding("account", "warning", f"not checked without {missing}: {skipped}", remedy),
    )
