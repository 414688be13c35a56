"""What the doctor found, a line each on stdout."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from spotmpi.aws import state_bucket
from spotmpi.cli.view import say
from spotmpi.core.errors import input_error
from spotmpi.environments.checks.finding import Finding
from spotmpi.environments.iam import policy


def show_policy(wanted: str) -> None:
    """Print an IAM policy as JSON, with rights to the bucket of Pulumi's state where PULUMI_BACKEND_URL names one."""
    bucket = state_bucket.named_in(os.environ)
    print(json.dumps(policy(wanted, bucket.name if bucket else None), indent=1))
    if bucket is None:
        say(f"{state_bucket.VARIABLE} names no bucket such as s3://my-state: rights to Pulumi's state are left out")


def with_probe(stack: str | None) -> tuple[Finding, ...]:
    """What the doctor finds, then what a pod finds; InputError without a stack."""
    if stack is None:
        raise input_error("--probe", None, "name the stack whose storage is to be tried")
    from spotmpi.environments import doctor, probe

    return (*doctor.doctor(stack), *probe.of_stack(stack, say))


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """Print level, check and message of each finding, its remedy and command beneath; or a JSON list."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
        return
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.level:<7}  {finding.check.ljust(width)}  {finding.message}")
        for more in (finding.remedy, finding.command):
            if more:
                print(f"{'':<7}  {'':<{width}}  -> {more}")
