"""`spotmpi scale`: keep nodes ready for a while."""

from typing import Annotated

import typer

from spotmpi.cli.options import Json, On, target


def command(
    group: Annotated[str, typer.Argument(help="A node group of the environment.", metavar="GROUP")],
    nodes: Annotated[int, typer.Argument(help="How many nodes to keep; 0 gives them back now.", metavar="N")],
    warm: Annotated[str, typer.Option("--warm", help="For how long, such as 30m.")] = "30m",
    on: On = None,
    json: Json = False,
) -> None:
    """Keep nodes of an environment ready between runs; AWS gives them back by itself when the time is over."""
    from datetime import timedelta

    from spotmpi.cli.warm_nodes import environment_at, show
    from spotmpi.environments.warm_nodes import keep_warm
    from spotmpi.spec.job import read_duration

    length = timedelta(seconds=read_duration("--warm", warm))
    show(keep_warm(environment_at(target(on, None)), group, nodes, length), json)
