"""`spotmpi plan`: which zone and type, at what price, and whether the quota allows it."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json


def command(
    types: Annotated[str, typer.Option("--types", help="EC2 instance types to compare, with commas.", metavar="A,B")],
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="How many nodes are wanted.")],
    region: Annotated[
        str, typer.Option("--region", help="AWS regions, with commas (default: the one of your AWS login).")
    ] = "",
    row: Annotated[int, typer.Option("--row", help="Which row --write and --request-quota mean.")] = 1,
    write: Annotated[
        str | None,
        typer.Option("--write", help="Put region, zone and type of the row into a stack's file.", metavar="STACK"),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="The node group of the stack that gets the type.")
    ] = None,
    request: Annotated[bool, typer.Option("--request-quota", help="Ask AWS for the quota that the row lacks.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer yes to --request-quota.")] = False,
    json: Json = False,
) -> None:
    """Compare zones and types for spot nodes: price, placement score, quota, and why each other one lost."""
    from spotmpi.cli import zone_choice, zone_table
    from spotmpi.environments.zones.comparison import zone_plan

    plan = zone_plan(_listed(types), nodes, _listed(region))
    if not json:
        zone_table.show(plan)
    increase = zone_choice.request(plan, row, yes) if request else None
    path = zone_choice.write(plan, row, write, group) if write else None
    if json:
        zone_table.show_json(plan, increase, path)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
