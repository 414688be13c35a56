"""`spotmpi down`: from an environment to nothing that bills."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, Stack, Yes


def command(
    stack: Stack,
    yes: Yes = False,
    delete_data: Annotated[
        str | None,
        typer.Option(
            "--delete-data", help="Delete persistent storage too; write the environment's name.", metavar="NAME"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Stop runs, take an environment down, and list what still bills; exit 1 when that is anything."""
    from spotmpi.cli import environment_commands

    environment_commands.take_down(stack, yes, delete_data, json)
