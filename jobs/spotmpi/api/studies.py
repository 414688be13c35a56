"""Python API of studies: `spotmpi bench`, `report` and `predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core import wording
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.wording import Echo, silent
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Source, base_of, is_study, read_spec, read_toml, resolve_paths, with_entries
from spotmpi.study import parameters, pricing, study_file
from spotmpi.study.study import Study, StudyOptions, WrongStudy, grid_study, read_base
from spotmpi.study.sweep import Sweep

if TYPE_CHECKING:
    from spotmpi.core.price import Price
    from spotmpi.forecast.forecast import Forecast, Goal
    from spotmpi.report.comparison import Comparison
    from spotmpi.report.report import Report
    from spotmpi.study.execution import BackendRunner


def bench(
    source: Source,
    options: StudyOptions = study_file.NO_OPTIONS,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    on_event: Callable[[Event], None] = lambda event: None,
    echo: Echo = silent,
) -> Sweep:
    """Run the trials of a study, one after the other, and return the sweep with their outcomes.

    *source* is a job spec, of which *options* give node counts and variants, or a study file with its own parameters.
    An unfinished sweep of the same study and work is continued, unless *options* ask for a fresh one.

    Raises:
        InputError: all problems of the spec, the options and the trials, before the first one starts.
        SweepStopped: Ctrl-C; the same call continues later.
    """
    from spotmpi.study import execution

    target = targets.target_of(on)
    study, runner = _prepare(source, options, overrides, on, on_event, echo)
    study = pricing.with_prices(study, on, echo)
    for spec in (study.spec, *(each.spec for each in study.variants)):
        if spec.data or spec.init:
            from spotmpi.api import run_entries

            run_entries.fetch(spec, echo)
    sweep = execution.open_sweep(study, target, runner.new_id(study.spec), options.fresh, echo)
    execution.run_sweep(sweep, runner, echo)
    return sweep


def plan_bench(
    source: Source,
    options: StudyOptions = study_file.NO_OPTIONS,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    echo: Echo = silent,
) -> Study:
    """The study that `bench` would run, with its `trials` in order; nothing is started."""
    study, _ = _prepare(source, options, overrides, on, lambda event: None, echo)
    return pricing.with_prices(study, on, echo)


def study_of(source: Source, options: StudyOptions, overrides: Iterable[str] = (), on: TargetLike = None) -> Study:
    """The study in a study file, or that of *options* for a spec; on this machine it reads copies of entries.

    Raises:
        WrongStudy: with every problem of the study, the spec and the options.
        InputError: the file cannot be read.
    """

    def copy_of(place: str) -> str:
        from spotmpi.api import run_entries

        return run_entries.copy_of(place)

    convert = copy_of if targets.target_of(on).is_local else str
    if isinstance(source, str | Path):
        path = Path(source)
        values = read_toml(path)
        if is_study(values):
            return study_file.load(path, overrides, options, convert, values)
        source = resolve_paths(values, base_of(path))
    spec, faults = read_base(lambda: with_entries(read_spec(source, overrides), convert))
    texts, problems = parameters.settings_with_places(wording.option("variant"), options.variants, convert)
    options, faults = replace(options, variants=texts), faults.with_problems(problems)
    if spec.dataset is not None:
        remedy = "a study measures runs alone: build it with `spotmpi data build`, and name it as `data`"
        raise input_error("dataset", spec.dataset.build, remedy)
    return grid_study(spec, options, faults)


def make_report(ids: Sequence[str] = (), on: TargetLike = None, force: bool = False) -> Report:
    """The report of one sweep or of any number of runs of the same work; by default of the newest sweep or run.

    Raises:
        UnknownRun: no run or sweep has such an id, or several do.
        InputError: the runs measured different work (*force* shows and marks them).
    """
    from spotmpi.report.gather import gather

    return gather(ids, targets.target_of(on).folder, datetime.now(), force)


def compare(before: str, after: str, on: TargetLike = None, force: bool = False) -> Comparison:
    """Compare two sweeps or runs of the same work, row by row.

    Raises:
        UnknownRun: no run or sweep has such an id, or several do.
        InputError: they have no row in common, or measured different work (*force* compares and marks them).
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
    """Forecast other node counts from a sweep (by default the newest) or a published table, for each series.

    The model is fitted to the counts *fit*, by default the smaller half of the measured ones. If *goal* has no price,
    it is the current price of each series in the environment *on*, else that at the time of the sweep.

    Raises:
        InputError: there are too few measured counts, or *goal* is not valid for them.
    """
    from spotmpi.forecast import forecast, model
    from spotmpi.forecast.published import published_tables
    from spotmpi.report.scaling import series_of

    specs: Mapping[str, JobSpec] = {}
    prices: Mapping[str, Price] = {}
    if measured in published_tables():
        series = published_tables()[measured].as_series()
    else:
        measured_report = make_report([measured] if measured else [], on, force=True)
        series, specs, prices = series_of(measured_report), measured_report.specs, measured_report.prices
    if not series:
        needs = "a model needs at least two node counts, and the samples of an iteration"
        remedy = "`spotmpi bench SPEC --nodes 1,2,4`, with metrics.samples_per_iteration if the program reports none"
        raise input_error("sweep", measured, f"{needs}: {remedy}")

    def goal_of(variant: str) -> Goal:
        own = [specs[variant]] if variant in specs else []
        return pricing.goal_with_price(goal or forecast.Goal(), prices.get(variant), own, on)

    return [forecast.forecast(model.fit(each, fit), nodes, goal_of(each.variant)) for each in series]


def _prepare(
    source: Source,
    options: StudyOptions,
    overrides: Iterable[str],
    on: TargetLike,
    on_event: Callable[[Event], None],
    echo: Echo,
) -> tuple[Study, BackendRunner]:
    """The study and the runner for its valid trials; InputError with the problems of both at once."""
    from spotmpi.study import execution

    try:
        study = study_of(source, options, overrides, on)
    except WrongStudy as error:
        if "kubernetes" in error.faults.wrong:  # the target cannot be inspected without it
            raise
        try:
            execution.require_valid(error.rest, _runner(error.rest, on, on_event, echo), error.faults.wrong)
        except InputError as further:
            raise InputError(error.faults.with_problems(further.problems).problems) from None
        except SpotmpiError:
            pass  # the target does not answer: its problems show when the study has no other ones
        raise
    runner = _runner(study, on, on_event, echo)
    execution.require_valid(study, runner)
    return study, runner


def _runner(study: Study, on: TargetLike, on_event: Callable[[Event], None], echo: Echo) -> BackendRunner:
    from spotmpi.study.execution import BackendRunner

    cluster, target = study.spec.kubernetes, targets.target_of(on)
    backend = targets.backend(on, cluster.context, cluster.namespace)
    if not target.has_pods:
        return BackendRunner(backend, target.folder, on_event, echo)
    from spotmpi.api import volume_entries

    return BackendRunner(backend, target.folder, on_event, echo, volume_entries)
