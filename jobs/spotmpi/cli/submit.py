"""What `spotmpi run` does once its options are read."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from spotmpi.agent import record
from spotmpi.api import runs
from spotmpi.backends.targets import Target
from spotmpi.cli import final_cost
from spotmpi.cli.view import make_view, say
from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED, input_error
from spotmpi.core.printable import printable
from spotmpi.runs.reader import RunState


@dataclass(frozen=True)
class Wanted:
    """Which job: a spec file, or a run to continue, with overrides."""

    spec: Path | None
    resume: str | None
    overrides: tuple[str, ...]
    target: Target


def show_plan(wanted: Wanted) -> None:
    """Print the plan as JSON, which is YAML."""
    if wanted.resume is not None:
        made = runs.plan_resume(wanted.resume, wanted.overrides, wanted.target)
    else:
        made = runs.plan_run(_spec(wanted), wanted.overrides, wanted.target)
    print(json.dumps(made, indent=1))


def run(wanted: Wanted, detach: bool, as_json: bool) -> None:
    """Run or continue, follow unless detached, print the result and exit with its code."""
    with make_view(quiet=as_json or detach) as view:
        if wanted.resume is not None:
            if wanted.spec is not None:
                raise input_error("--resume", wanted.resume, "takes the run's own spec: leave the spec file out")
            state = runs.resume(wanted.resume, wanted.overrides, wanted.target, detach, view.show, view.say)
        else:
            state = runs.run(_spec(wanted), wanted.overrides, wanted.target, detach, view.show, view.say)
    if as_json:
        print(json.dumps(vars(state)))
    elif detach:
        print(state.id)
    else:
        _tell_end(state)
    if not detach:
        final_cost.tell(state.id, wanted.target)
    raise typer.Exit(0 if detach else _exit_code(state))


def _spec(wanted: Wanted) -> Path:
    if wanted.spec is None:
        raise input_error("spec", None, "name a spec file; `spotmpi init` writes one to start from")
    return wanted.spec


def _tell_end(state: RunState) -> None:
    print(f"{state.id} {state.state}" + (f": {printable(state.reason)}" if state.reason else ""))
    if state.state in (record.STOPPED, record.FAILED):
        say(f"continue with: spotmpi run --resume {state.id}")
    sys.stdout.flush()


def _exit_code(state: RunState) -> int:
    if state.state == record.SUCCEEDED:
        return 0
    return EXIT_INTERRUPTED if state.state == record.STOPPED else EXIT_FAILURE
