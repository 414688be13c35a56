"""`spotmpi down`: destroy an environment until nothing bills."""

import json
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
    as_json: Json = False,
) -> None:
    """Stop runs, destroy an environment, and list what still bills; exit 1 if anything does."""
    from dataclasses import asdict

    from spotmpi.cli.environment_commands import open_dependencies
    from spotmpi.core.errors import EXIT_FAILURE
    from spotmpi.core.wording import echo
    from spotmpi.environments.down import down

    leftovers = down(stack, open_dependencies(stack, yes), delete_data)
    if as_json:
        print(json.dumps([asdict(each) for each in leftovers]))
    for each in leftovers if not as_json else ():
        print(f"{each.what}: {each.id}\n  -> {each.command}")
    if leftovers:
        echo(f"resources of {stack} that are left and may bill: {len(leftovers)}; repeat the command to check again")
        raise typer.Exit(EXIT_FAILURE)
    echo(f"no resources of {stack} are left that bill")
