"""What a run has cost, said and kept as it ends: later its environment may be gone, and AWS's prices forgotten."""

from __future__ import annotations

from spotmpi.backends.targets import Target
from spotmpi.cli.view import say
from spotmpi.core.errors import SpotmpiError
from spotmpi.runs import reader


def tell(run: str, target: Target) -> None:
    """Say what a run of an environment has cost, and keep that in its folder; nothing for any other run."""
    paths = reader.find(run, target.folder)
    if not reader.state(paths).over or not (paths.plan.is_file() and reader.plan(paths).get("there")):
        return
    from spotmpi.environments.cost import run_cost

    try:
        found = run_cost(paths.id, Target(None, target.runs_folder))
    except SpotmpiError as error:
        say(f"what it has cost is not known yet, `spotmpi cost {paths.id}` asks again: {error}")
    else:
        say(f"it has cost ${found.dollars:.2f} of nodes")
