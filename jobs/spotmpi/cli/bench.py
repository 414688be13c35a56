"""`spotmpi bench`: measure a job over node counts and variants, or a study."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Env, Json, Set, Slots, TargetOptions, overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotmpi.backends.targets import Target
    from spotmpi.study.study import StudyOptions


@dataclass(frozen=True)
class MeasurementOptions:
    """Options that say what is measured, and how often."""

    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", "-n", help="Node counts of a job spec, such as 1,2,4 (default: the spec's).", metavar="N,N,..."
        ),
    ] = None
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Trials per configuration (default: the study's, else 3).")
    ] = None
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            help="A variant of the spec to measure too; args+=TEXT adds arguments. Repeatable.",
            metavar="NAME:KEY=VALUE,...",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the order of trials (default 1).")] = None
    retries: Annotated[int | None, typer.Option("--retries", help="Retries of a failed trial (default 2).")] = None
    new: Annotated[bool, typer.Option("--new", help="Start a new sweep instead of continuing an unfinished one.")] = (
        False
    )

    @property
    def study(self) -> StudyOptions:
        """As those of a study."""
        from spotmpi.study.study import StudyOptions

        return StudyOptions(self.nodes, self.variant or (), self.repeats, self.seed, self.retries, self.new)


@dataclass(frozen=True)
class SpecOptions:
    """Options that override keys of the spec."""

    slots: Slots = None
    assignments: Set = None
    env: Env = None

    @property
    def overrides(self) -> list[str]:
        """Those that are given, as overrides."""
        return overrides({"slots": self.slots}, self.assignments, self.env)


def command(
    spec: Annotated[Path, typer.Argument(help="A job spec or a study, a TOML file.", metavar="SPEC")],
    options: MeasurementOptions = MeasurementOptions(),
    changes: SpecOptions = SpecOptions(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials in order and start nothing.")] = False,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Measure a job over node counts and variants, or a study, and report it; exit 1 if a trial is missing.

    The same command continues a sweep that was interrupted or reached a limit.
    """
    show = _show_trials if dry_run else _measure
    show(spec, options.study, changes.overrides, where.target, as_json)


def _show_trials(spec: Path, options: StudyOptions, overrides: Sequence[str], on: Target, as_json: bool) -> None:
    """Print the trials in the order in which they would run."""
    from spotmpi.api.studies import plan_bench
    from spotmpi.core.wording import counted, echo
    from spotmpi.study.study import MEASURED

    study = plan_bench(spec, options, overrides, on, echo)
    trials = study.trials()
    if as_json:
        keys = ("number", "variant", "nodes", "repeat", "role")
        rows = [{key: getattr(trial, key) for key in keys} for trial in trials]
        print(json.dumps({**study.source, "trials": rows}))
        return
    echo(f"{counted(len(trials), 'trial')} in the order of seed {study.seed}; nothing was started")
    if study.from_file:
        echo(f"estimate: {study.budget.estimate(trials)}")
    width = max(len(trial.variant) for trial in trials)
    for trial in trials:
        role = "" if trial.role == MEASURED else f"  {trial.role}"
        print(f"{trial.number:>4}  {trial.variant:<{width}}  nodes {trial.nodes}  repeat {trial.repeat}{role}")


def _measure(spec: Path, options: StudyOptions, overrides: Sequence[str], on: Target, as_json: bool) -> None:
    """Measure and report; exit with 1 if a trial is missing."""
    import sys

    from spotmpi.agent import record
    from spotmpi.api import studies
    from spotmpi.api.view import make_view
    from spotmpi.cli.report import show_report
    from spotmpi.core.errors import EXIT_FAILURE
    from spotmpi.core.events import Event
    from spotmpi.core.wording import counted, echo
    from spotmpi.study.study import FAILED, MEASURED, SUCCEEDED

    with make_view(quiet=as_json or not sys.stderr.isatty()) as view:

        def on_event(event: Event) -> None:
            if event.kind != record.LINE:  # the output of the program is in the logs of the trial
                view.show(event)

        sweep = studies.bench(spec, options, overrides, on, on_event, view.echo)
    if any(trial.state == SUCCEEDED and trial.role == MEASURED for trial in sweep.trials):
        # Measurements are always shown: trials of changed code are marked rather than refused.
        show_report(studies.make_report([sweep.id], on, force=True), sweep.folder / "report", as_json)
    elif as_json:
        print(json.dumps(sweep.to_json()))
    for trial in sweep.trials:
        if trial.state == FAILED:
            times = counted(trial.failures, "time")
            echo(f"trial {trial.number} failed {times} ({trial.reason}): spotmpi logs {trial.runs[-1]}")
    raise typer.Exit(EXIT_FAILURE if any(trial.state != SUCCEEDED for trial in sweep.trials) else 0)
