"""`spotmpi doctor`: check an account, this machine and an environment before money is spent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json

if TYPE_CHECKING:
    from spotmpi.environments.checks.check import Finding


def command(
    stack: Annotated[
        str | None, typer.Argument(help="A stack whose settings are checked too.", metavar="STACK")
    ] = None,
    iam: Annotated[
        str | None,
        typer.Option(
            "--iam",
            help="Only print the minimal IAM policy: look, run, up for people, the others for CI roles.",
            metavar="look|run|up|preview|build|destroy",
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also start a small pod that mounts the storage and resolves a name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check account, tools, quota, leftovers and a built environment; exit 1 if there is an error."""
    if iam is not None:
        _print_policy(iam)
        return
    from spotmpi.environments.doctor import doctor

    findings = doctor(stack) if not probe else _with_probe(stack)
    _print_findings(findings, as_json)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def _print_policy(name: str) -> None:
    """Print an IAM policy as JSON, with access to the bucket of Pulumi's state where PULUMI_BACKEND_URL names one."""
    import os

    from spotmpi.aws import state_bucket
    from spotmpi.core.wording import echo
    from spotmpi.environments.iam import policy

    bucket = state_bucket.from_variables(os.environ)
    print(json.dumps(policy(name, bucket.name if bucket else None), indent=1))
    if bucket is None:
        echo(f"{state_bucket.VARIABLE} names no bucket such as s3://my-state: the policy omits Pulumi's state")


def _with_probe(stack: str | None) -> tuple[Finding, ...]:
    """The findings of the doctor, then those of a pod; InputError without a stack."""
    from spotmpi.core.errors import input_error
    from spotmpi.core.wording import echo
    from spotmpi.environments import doctor, probe

    if stack is None:
        raise input_error("--probe", None, "needs a STACK whose storage to mount")
    return (*doctor.doctor(stack), *probe.probe_stack(stack, echo))


def _print_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """Print level, check and message of each finding, then its remedy and command; or a JSON list."""
    if as_json:
        from dataclasses import asdict

        print(json.dumps([asdict(finding) for finding in findings]))
        return
    from spotmpi.core.wording import printable_lines  # a pod of --probe answers whatever it likes

    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(printable_lines(f"{finding.level:<7}  {finding.check.ljust(width)}  {finding.message}"))
        for more in (finding.remedy, finding.command):
            if more:
                print(printable_lines(f"{'':<7}  {'':<{width}}  -> {more}"))
