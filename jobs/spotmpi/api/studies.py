"""Measuring as functions: `spotmpi bench`, `report` and `predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import input_error
from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.spec import job as specs
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Source, read_spec
from spotmpi.study import pricing, study_file
from spotmpi.study.study import Study, StudyOptions, full_factorial
from spotmpi.study.sweep import Sweep

if TYPE_CHECKING:
    from spotmpi.forecast.forecast import Forecast, Goal
    from spotmpi.report.comparison import Comparison
    from spotmpi.report.report import Report
    from spotmpi.study.backend_runner import BackendRunner

_NO_OPTIONS = StudyOptions()


def bench(
    source: Source,
    factors: StudyOptions = _NO_OPTIONS,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    watch: Callable[[Event], None] = lambda event: None,
    say: Say = lambda text: None,
) -> Sweep:
    """Measure a job, one trial after the other, and give the sweep with its outcomes.

    *source* is a spec, of which *factors* vary node counts and variants, or a study, which says itself what it varies.
    A sweep of the same design and work that was broken off goes on where it was, unless *factors* ask for a fresh one.

    Raises:
        InputError: everything that is wrong with the spec, the factors or any trial, before the first one starts.
        Stopped: Ctrl-C; the same call goes on later.
    """
    from spotmpi.study import execution

    target = targets.target_of(on)
    study = study_of(source, factors, overrides)
    runner = _runner(study, on, watch, say)
    execution.require_valid(study, runner)
    study = pricing.with_prices(study, on, say)
    recording = execution.Recording(target.folder, runner.new_id(study.spec), target.name)
    sweep = execution.open_sweep(study, recording, factors.fresh, say)
    execution.run_sweep(sweep, runner, say)
    return sweep


def plan_bench(
    source: Source,
    factors: StudyOptions = _NO_OPTIONS,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    say: Say = lambda text: None,
) -> Study:
    """What `bench` would measure; its `trials` are in the order in which they would run. Nothing is started."""
    from spotmpi.study import execution

    study = study_of(source, factors, overrides)
    execution.require_valid(study, _runner(study, on, lambda event: None, say))
    return pricing.with_prices(study, on, say)


def study_of(source: Source, factors: StudyOptions, overrides: Iterable[str] = ()) -> Study:
    """The design that a study describes, or that *factors* ask of a spec; InputError with every problem."""
    if isinstance(source, str | Path) and study_file.is_study(specs.read_toml(Path(source))):
        return study_file.load(Path(source), overrides, factors)
    return full_factorial(read_spec(source, overrides), factors)


def make_report(wanted: Sequence[str] = (), on: TargetLike = None, force: bool = False) -> Report:
    """The report of one sweep or of any number of runs of the same work; by default of the newest sweep or run.

    Raises:
        UnknownRun: an id fits nothing, or several.
        InputError: the runs are of different work; *force* shows them all the same, marked.
    """
    from spotmpi.report.gather import gather

    return gather(wanted, targets.target_of(on).folder, datetime.now(), force)


def compare(before: str, after: str, on: TargetLike = None, force: bool = False) -> Comparison:
    """Two sweeps or runs of the same work, row by row.

    Raises:
        UnknownRun: an id fits nothing, or several.
        InputError: nothing in them can be compared, or they measured different work and *force* is not given.
    """
    from spotmpi.report.comparison import compare as compared

    return compared(make_report([before], on, force=True), make_report([after], on, force=True), force)


def predict(
    measured: str | None,
    nodes: Sequence[int],
    fit: Sequence[int] | None = None,
    goal: Goal | None = None,
    on: TargetLike = None,
) -> list[Forecast]:
    """What a sweep (by default the newest) or a published table lets expect of other node counts, for each series.

    The model is fitted to the counts *fit*, by default the smaller half of those that were measured. Without a price in
    *goal* it is that of the environment that *on* names now, else the one that the sweep was carried out at.

    Raises:
        InputError: there is too little to fit to, or *goal* can't be answered.
    """
    from spotmpi.forecast import forecast, model
    from spotmpi.forecast.series import published_tables
    from spotmpi.report.scaling import series_of

    specs: Sequence[JobSpec] = ()
    known = None
    if measured in published_tables():
        found = published_tables()[measured].as_series()
    else:
        made = make_report([measured] if measured else [], on, force=True)
        found, specs, known = series_of(made), made.specs, made.price
    if not found:
        raise input_error("predict", measured, "a model needs two node counts: `spotmpi bench SPEC --nodes 1,2,4`")
    goal = pricing.goal_with_price(goal or forecast.Goal(), known, specs, on)
    return [forecast.forecast(model.fit(each, fit), nodes, goal) for each in found]


def _runner(study: Study, on: TargetLike, watch: Callable[[Event], None], say: Say) -> BackendRunner:
    from spotmpi.study.backend_runner import BackendRunner

    cluster = study.spec.kubernetes
    backend = targets.backend(on, cluster.context, cluster.namespace)
    return BackendRunner(backend, targets.target_of(on).folder, watch, say)
