"""`spotmpi doctor`: what stands in the way, before money is spent."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json


def command(
    stack: Annotated[
        str | None, typer.Argument(help="A stack whose settings are checked too.", metavar="STACK")
    ] = None,
    iam: Annotated[
        str | None,
        typer.Option(
            "--iam",
            help="Check nothing; print the least IAM policy: look, run, up for people, the rest for roles of CI.",
            metavar="look|run|up|preview|build|destroy",
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also start a small pod that mounts the storage and resolves a name.")
    ] = False,
    json: Json = False,
) -> None:
    """Check account, tools, quota, leftovers and a live environment; exit 1 when something is an error."""
    from spotmpi.cli import findings

    if iam is not None:
        findings.show_policy(iam)
        return
    from spotmpi.environments.doctor import doctor

    found = doctor(stack) if not probe else findings.with_probe(stack)
    findings.show(found, json)
    if any(finding.level == "error" for finding in found):
        raise typer.Exit(1)
