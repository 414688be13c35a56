"""`spotmpi run`: put a job to work and follow it."""

from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.options import Env, Json, Nodes, On, RunsFolder, Set, Slots, overrides, target


def command(
    spec: Annotated[Path | None, typer.Argument(help="The job spec, a TOML file.")] = None,
    nodes: Nodes = None,
    slots: Slots = None,
    assignments: Set = None,
    env: Env = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Continue this stopped or failed run instead.", metavar="ID")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return at once.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Run a job, follow it, and record it; exit 0 when it succeeds, 1 when it fails, 130 when interrupted."""
    from spotmpi.cli import submit

    wanted = submit.Wanted(spec, resume, tuple(overrides(nodes, slots, assignments, env)), target(on, runs))
    if dry_run:
        submit.show_plan(wanted)
    else:
        submit.run(wanted, detach, json)
