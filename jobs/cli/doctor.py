"""`spotmpi doctor`: what stands in the way, before money is spent."""

from typing import Annotated

import typer

from jobs.cli.options import Json


def command(
    stack: Annotated[
        str | None, typer.Argument(help="A stack whose settings are checked too.", metavar="STACK")
    ] = None,
    json: Json = False,
) -> None:
    """Check account, tools, quota and leftovers; exit 1 when something is an error."""
    from jobs.cli import findings
    from jobs.cloud.doctor import doctor

    found = doctor(stack)
    findings.show(found, json)
    if any(finding.level == "error" for finding in found):
        raise typer.Exit(1)
