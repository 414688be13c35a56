"""`spotmpi upgrade`: the next Kubernetes version for an environment, its add-ons and its nodes."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, Stack, Yes


def command(
    stack: Stack,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="Kubernetes version (default: the next one; the current one only renews add-ons and nodes)."
        ),
    ] = None,
    no_nodes: Annotated[
        bool, typer.Option("--no-nodes", help="Leave the nodes as they are, so that runs on them go on.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show versions and Pulumi's preview, and change nothing.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Upgrade control plane, add-ons and idle nodes by one minor version, after a preview; the same command goes on."""
    from spotmpi.cli import environment_commands
    from spotmpi.environments.upgrade import Request

    environment_commands.upgrade(stack, yes, Request(to, not no_nodes, dry_run), json)
