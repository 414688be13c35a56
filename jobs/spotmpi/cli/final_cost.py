"""What a run has cost, reported and recorded as it ends: later its environment or AWS's prices may be gone."""

from __future__ import annotations

from spotmpi.api.view import echo
from spotmpi.backends.targets import Target
from spotmpi.core import file_status
from spotmpi.core.errors import SpotmpiError
from spotmpi.runs import reader, recorded_plan


def report(run: str, target: Target) -> None:
    """Print what a run of an environment has cost, and record it in its folder; nothing for any other run."""
    paths = reader.find(run, target.folder)
    if not reader.state(paths).over or not (file_status.is_file(paths.plan) and recorded_plan.read(paths).environment):
        return
    from spotmpi.environments.cost import run_cost

    try:
        cost = run_cost(paths.id, Target(None, target.runs_folder))
    except SpotmpiError as error:
        echo(f"the cost of this run is not known yet, try `spotmpi cost {paths.id}` later: {error}")
    else:
        echo(f"cost of its nodes: ${cost.dollars:.2f}")
