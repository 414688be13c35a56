"""What `spotmpi bench` and `spotmpi report` do once their options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from spotmpi.agent import record
from spotmpi.api import studies as api
from spotmpi.backends.targets import Target
from spotmpi.cli.view import make_view, say
from spotmpi.core import names
from spotmpi.core.errors import EXIT_FAILURE, input_error
from spotmpi.core.events import Event
from spotmpi.report import files, terminal
from spotmpi.report.report import Report
from spotmpi.study.design import Factors
from spotmpi.study.sweep import Sweep
from spotmpi.study.trial import FAILED, MEASURED, SUCCEEDED


@dataclass(frozen=True)
class Wanted:
    """What to measure; *given* are the factors that the user gave, None where not."""

    spec: Path
    nodes: str | None
    given: Mapping[str, Any]
    overrides: tuple[str, ...]
    target: Target
    fresh: bool

    @property
    def factors(self) -> Factors:
        """The factors, with defaults for what was not given."""
        try:
            nodes = None if self.nodes is None else [int(part) for part in self.nodes.split(",")]
        except ValueError:
            raise input_error("--nodes", self.nodes, "write the counts with commas between, such as 1,2,4") from None
        given = {key: value for key, value in self.given.items() if value is not None}
        return Factors(nodes, **given, fresh=self.fresh)


def show_trials(wanted: Wanted, as_json: bool) -> None:
    """Print the trials in the order in which they would run."""
    design = api.plan_bench(wanted.spec, wanted.factors, wanted.overrides, wanted.target, say)
    trials = design.trials()
    if as_json:
        shown = ("number", "variant", "nodes", "repeat", "role")
        rows = [{key: getattr(trial, key) for key in shown} for trial in trials]
        print(json.dumps({**design.source, "trials": rows}))
        return
    say(f"{len(trials)} trials in the order of seed {design.seed}; nothing is started")
    if design.is_study:
        say(f"estimate: {design.budget.estimate(trials)}")
    width = max(len(trial.variant) for trial in trials)
    for trial in trials:
        role = "" if trial.role == MEASURED else f"  {trial.role}"
        print(f"{trial.number:>4}  {trial.variant:<{width}}  nodes {trial.nodes}  repeat {trial.repeat}{role}")


def bench(wanted: Wanted, as_json: bool) -> None:
    """Measure, report, and exit with 1 where a trial is missing."""
    with make_view(quiet=as_json or not sys.stderr.isatty()) as view:

        def watch(event: Event) -> None:
            if event.kind != record.LINE:  # what the program prints is in the trial's logs
                view.show(event)

        it = api.bench(wanted.spec, wanted.factors, wanted.overrides, wanted.target, watch, view.say)
    if any(trial.state == SUCCEEDED and trial.role == MEASURED for trial in it.trials):
        # What was measured is shown in any case: trials of changed code are marked rather than refused.
        _hand_over(api.make_report([it.id], wanted.target, force=True), it.folder / "report", as_json)
    elif as_json:
        print(json.dumps(it.to_json()))
    _tell_failed(it)
    missing = [trial for trial in it.trials if trial.state != SUCCEEDED]
    raise typer.Exit(EXIT_FAILURE if missing else 0)


def report(wanted: Sequence[str], out: Path | None, runs: Path | None, force: bool, as_json: bool) -> None:
    """Show the report of a sweep or runs, and write its files."""
    made = api.make_report(wanted, Target(runs_folder=runs), force)
    folder = (runs or names.default_runs_folder()).absolute()
    _hand_over(made, out or made.folder(folder), as_json)


def _hand_over(made: Report, folder: Path, as_json: bool) -> None:
    written = files.write(made, folder)
    if as_json:
        print(json.dumps(made.to_json()))
    else:
        terminal.show(made)
        print(f"\nreport: {names.shown(written.page.absolute())}")
    sys.stdout.flush()


def _tell_failed(it: Sweep) -> None:
    for trial in it.trials:
        if trial.state == FAILED:
            say(f"trial {trial.number} failed {trial.failures} times ({trial.reason}): spotmpi logs {trial.runs[-1]}")
