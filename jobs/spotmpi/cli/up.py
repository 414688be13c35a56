"""`spotmpi up`: an environment, from its stack's file to its first run."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, Stack, Yes


def command(
    stack: Stack,
    yes: Yes = False,
    no_images: Annotated[
        bool, typer.Option("--no-images", help="Push no images, and so run nothing small at the end.")
    ] = False,
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help="Leave the small run at the end out.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Push this to a folder of the storage; repeatable.", metavar="SRC=FOLDER"),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="AWS takes all nodes of the groups after this time, such as 8h.")
    ] = None,
    json: Json = False,
) -> None:
    """Build an environment, push images and run something small; the same command goes on where one stopped."""
    from spotmpi.cli import environment_commands

    wished = environment_commands.wishes(not no_images, not no_smoke, expires, data or [])
    environment_commands.bring_up(stack, yes, wished, json)
