"""`spotmpi run`: run a job and follow it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Env, Json, Nodes, On, RunsFolder, Set, Slots, overrides, target

if TYPE_CHECKING:
    from spotmpi.runs.reader import RunState


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
    as_json: Json = False,
) -> None:
    """Run a job, follow it and record it.

    The exit code is 0 if it succeeds, 1 if it fails and 130 if it is interrupted.
    """
    from spotmpi.api import runs as api
    from spotmpi.cli import final_cost
    from spotmpi.cli.view import make_view

    changes, place = overrides(nodes, slots, assignments, env), target(on, runs)
    source = _source(spec, resume)
    if dry_run:
        plan = api.plan_resume(resume, changes, place) if resume is not None else api.plan_run(source, changes, place)
        print(json.dumps(plan, indent=1))
        return
    with make_view(quiet=as_json or detach) as view:
        if resume is not None:
            state = api.resume(resume, changes, place, detach, view.show, view.say)
        else:
            state = api.run(source, changes, place, detach, view.show, view.say)
    _show_result(state, detach, as_json)
    if not detach:
        final_cost.report(state.id, place)
    raise typer.Exit(0 if detach else _exit_code(state))


def _source(spec: Path | None, resume: str | None) -> Path:
    from spotmpi.core.errors import input_error

    if spec is not None and resume is not None:
        raise input_error("--resume", resume, "takes the run's own spec: leave the spec file out")
    if spec is None and resume is None:
        raise input_error("spec", None, "name a spec file; `spotmpi init` writes one to start from")
    return spec or Path()


def _show_result(state: RunState, detach: bool, as_json: bool) -> None:
    from spotmpi.agent import record
    from spotmpi.cli.view import say
    from spotmpi.core.printable import printable

    if as_json:
        print(json.dumps(vars(state)))
    elif detach:
        print(state.id)
    else:
        print(f"{state.id} {state.state}" + (f": {printable(state.reason)}" if state.reason else ""))
        if state.state in (record.STOPPED, record.FAILED, record.LOST):
            say(f"continue with: spotmpi run --resume {state.id}")
        sys.stdout.flush()


def _exit_code(state: RunState) -> int:
    from spotmpi.agent import record
    from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED

    if state.state == record.SUCCEEDED:
        return 0
    return EXIT_INTERRUPTED if state.state == record.STOPPED else EXIT_FAILURE
