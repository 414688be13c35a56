"""`spotmpi drill`: inject a fault into a run and measure its recovery."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from spotmpi.cli.options import Json, Node, RunId, TargetOptions


def command(
    run: RunId,
    node: Node = "0",
    fault: Annotated[str, typer.Option("--fault", help="The fault.", metavar="evict|delete|kill")] = "evict",
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Inject a fault into a run and measure its recovery.

    In a training run the fault occurs at its next reported iteration; in a pool, and for a worker of a stream, at once.
    """
    from spotmpi.api import runs as api
    from spotmpi.api.view import AttemptView
    from spotmpi.core.wording import printable

    view = AttemptView()
    recovery = api.drill(run, node, fault, where.target, view.show, view.echo)
    print(json.dumps({**vars(recovery), "member": recovery.member.text}) if as_json else printable(recovery))
