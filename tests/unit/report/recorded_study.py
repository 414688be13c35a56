"""Studies of known contents, recorded as finished, and their reports."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spotmpi.report.gather import gather
from spotmpi.report.report import Report
from spotmpi.study.study_file import from_values
from spotmpi.study.sweep import Sweep, sweep_folder
from spotmpi.study.trial import SUCCEEDED, WITHOUT_ALLREDUCE, Trial
from tests.unit.report.recorded_runs import NOW, SPEC, START, Recorded, record, work_of

RecordedTrials = dict[tuple[str, int], Recorded]


def study_report(
    runs: Path,
    factors: dict[str, Any],
    rates: dict[tuple[str, int], float],
    changed: RecordedTrials | None = None,
    **more: Any,
) -> Report:
    """The report of a study; each cell has its rate, give or take a per cent from trial to trial.

    Trials without exchange are a quarter faster, and *changed* holds by (role, repeat) what else a trial came to.
    """
    study = from_values({"spec": SPEC.canonical(), "factors": factors, **more})
    sweep = Sweep(sweep_folder("study-1", runs), study, work_of(SPEC), START)
    sweep.create()
    for trial in study.trials():
        rate = rates[trial.variant, trial.nodes] * (1 + 0.01 * (trial.repeat % 3 - 1))
        recorded = (changed or {}).get((trial.role, trial.repeat), Recorded())
        run = f"run-{trial.number}"
        recorded = replace(recorded, rate=rate * (1.25 if trial.role == WITHOUT_ALLREDUCE else recorded.rate / 10.0))
        record(runs, run, study.spec_of(trial), recorded)
        sweep.update(Trial(**{**vars(trial), "state": SUCCEEDED, "runs": (run,)}))
    return gather([], runs, NOW)
