"""`spotmpi scale`: keep nodes ready for a while."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, On

if TYPE_CHECKING:
    from spotmpi.environments.node_group_sizes import WarmNodes


def command(
    group: Annotated[str, typer.Argument(help="A node group of the environment.", metavar="GROUP")],
    nodes: Annotated[int, typer.Argument(help="How many nodes to keep; 0 releases them now.", metavar="N")],
    length: Annotated[str, typer.Option("--for", help="For how long, such as 30m.", metavar="TIME")] = "30m",
    on: On = None,
    as_json: Json = False,
) -> None:
    """Keep nodes of an environment ready between runs; AWS releases them automatically when the time is over."""
    from datetime import timedelta

    from spotmpi.backends import targets
    from spotmpi.core.errors import input_error
    from spotmpi.environments.node_group_sizes import keep_warm
    from spotmpi.spec.job import read_duration

    duration = timedelta(seconds=read_duration("--for", length))
    chosen = targets.Target(on)
    environment = targets.environment_of(chosen)
    if environment is None:
        raise input_error("--on", chosen.name, "give an environment: a stack, or a file of its outputs")
    _show(keep_warm(environment, group, nodes, duration), as_json)


def _show(warm: WarmNodes, as_json: bool) -> None:
    """Print how many nodes are kept and until when, or a JSON object."""
    if as_json:
        print(json.dumps(vars(warm), default=str))
    elif warm.until is None:
        print(f"{warm.group}: {warm.running} running; idle nodes are released within ten minutes, down to {warm.nodes}")
    else:
        until = f"{warm.until.astimezone():%Y-%m-%d %H:%M}"
        kept = f"at least {warm.nodes} until {until}"
        print(f"{warm.group}: {warm.running} running, {kept}; idle nodes are released after that")
