"""Makes the report of a sweep or of runs; runs of different work are refused or marked."""

from __future__ import annotations

import dataclasses
import pickle
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from spotmpi.agent import hardware
from spotmpi.agent.files import is_file, is_folder
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError, Problem, UnknownRun, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.price import Price
from spotmpi.core.wording import counted
from spotmpi.report import rows, sections, spending, trial_results
from spotmpi.report.figures import letters
from spotmpi.report.report import Report, baseline_caveats, conditions, method, node_caveats, row_caveats
from spotmpi.report.trial_results import TrialResult
from spotmpi.runs import reader as runs
from spotmpi.study import execution, pricing
from spotmpi.study.study import (
    ALLREDUCE,
    BASELINE,
    FAILED,
    MEASURED,
    READ,
    RUNNING,
    SUCCEEDED,
    WITHOUT_ALLREDUCE,
    Study,
    Trial,
)
from spotmpi.study.sweep import Sweep, find_sweep, sweep_folders

DIFFERENT = "different work"
_PARALLEL_FROM = 64 << 20  # bytes of metrics; below, one process is faster
_CHUNK = 4  # runs that one process reads
_READER = """
import pickle, sys
from spotmpi.report.trial_results import read
pickle.dump([read(*each) for each in pickle.load(sys.stdin.buffer)], sys.stdout.buffer)
"""
_LISTED = 4  # missing trials of a kind that have a warning each; of more, the others share one


def gather(ids: Sequence[str], runs_folder: Path, now: datetime, force: bool = False) -> Report:
    """The report of one sweep or of any number of runs; ids may be abbreviated, none means the newest sweep or run.

    Raises:
        UnknownRun: no run or sweep has such an id, or several do.
        InputError: the runs measured different work (*force* shows and marks them).
    """
    if not ids:
        ids = [_newest(runs_folder)]
    sweep = _requested_sweep(ids, runs_folder)
    if sweep:
        return sweep_report(sweep, runs_folder, now, force)
    return runs_report([*dict.fromkeys(_find_run(run, runs_folder) for run in ids)], now, force)


def _find_run(run: str, runs_folder: Path) -> RunPaths:
    """The paths of the run that an id names, which is not that of a sweep; UnknownRun lists the sweeps too."""
    sweeps = ", ".join(path.name for path in sweep_folders(runs_folder))
    if sweeps and not any(paths.id.startswith(run) for paths in runs.every(runs_folder)):
        remedy = f"no such run or sweep in {runs_folder}; sweeps: {sweeps}; `spotmpi list` lists the runs"
        raise UnknownRun([Problem("run", run, remedy)])
    return runs.find(run, runs_folder)


def sweep_report(sweep: Sweep, runs_folder: Path, now: datetime, force: bool) -> Report:
    """The report of a sweep, finished or not."""
    finished = _finished(sweep, runs_folder, MEASURED)
    results = _read([(paths, trial.variant) for trial, paths in finished if is_folder(paths.folder)])
    if not results:
        raise input_error("sweep", sweep.id, _without_results(sweep))
    differences = _differences(results, {variant.name: variant.keys for variant in sweep.study.variants})
    _require_same_work(differences, results[0].run, force)
    study = sweep.study
    without_allreduce = _runs_without_allreduce(sweep, runs_folder)
    micro_benchmarks = [run for role in (ALLREDUCE, READ) for run in _with_role(sweep, runs_folder, role)]
    table = rows.rows(results, lambda run: _flags(run, differences))
    report = Report(
        title=study.spec.title,
        created=now.timestamp(),
        rows=table,
        conditions=[("Sweep", sweep.id), *conditions(results)],
        method=[_trial_order(sweep), *method(results)],
        warnings=[
            *_warnings(results, differences),
            *_missing_trials(sweep, finished),
            *row_caveats(table, without_allreduce),
            *node_caveats(results, micro_benchmarks),
            *_baseline_caveats(sweep, runs_folder),
        ],
        commands=[sweep.command],
        spec=study.spec.to_toml(),
        subfolder=f"{sweep.folder.relative_to(runs_folder)}/report",
        variants=[(variant.name, ", ".join(variant.settings) or "the spec itself") for variant in study.variants],
        without_allreduce=without_allreduce,
        micro_benchmarks=micro_benchmarks,
        prices=_prices(study),
        specs={variant.name: variant.spec for variant in study.variants},
    )
    return dataclasses.replace(report, sections=sections.sweep_sections(sweep, report, runs_folder))


def _prices(study: Study) -> dict[str, Price]:
    """The highest price of a node of each variant, without the workers of its stream."""
    known = [
        (name, pricing.without_workers(price, study.variant(name).spec, nodes))
        for name, nodes in study.configurations
        if (price := study.budget.price_of(name, nodes))
    ]
    return dict(sorted(known, key=lambda pair: pair[1].node_hour))


def _without_results(sweep: Sweep) -> str:
    """Why nothing can be reported of *sweep*."""
    if not sweep.finished:
        return "no trial has succeeded yet; the same bench command continues the sweep"
    failed = [trial for trial in sweep.trials if trial.state == FAILED]
    if not failed:
        return "the folders of its runs have been removed"
    return f"no trial has succeeded; the last one failed: {failed[-1].reason}"


def _read(ids: Sequence[tuple[RunPaths, str]]) -> list[TrialResult]:
    """The results of runs and their variants; large ones are read on all cores."""
    sizes = [paths.metrics.stat().st_size for paths, _ in ids if is_file(paths.metrics)]
    if sum(sizes) < _PARALLEL_FROM:
        return [trial_results.read(paths, variant) for paths, variant in ids]
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    with ThreadPoolExecutor(hardware.usable_cores()) as threads:
        return [result for results in threads.map(_read_in_process, chunks) for result in results]


def _read_in_process(ids: Sequence[tuple[RunPaths, str]]) -> list[TrialResult]:
    """The results of runs, read by a process of its own, or here if that fails, to raise its error here.

    Not one of `multiprocessing`, which by default imports the caller's script anew on macOS and since Python 3.14.
    """
    process = subprocess.run([sys.executable, "-P", "-c", _READER], input=pickle.dumps(ids), capture_output=True)
    if process.returncode:
        return [trial_results.read(paths, variant) for paths, variant in ids]
    results: list[TrialResult] = pickle.loads(process.stdout)
    return results


def runs_report(paths: Sequence[RunPaths], now: datetime, force: bool) -> Report:
    """The report of runs, of one sweep or not."""
    first = trial_results.read(paths[0], "")
    title = first.spec["name"] or runs.state(paths[0]).name
    results = [trial_results.read(path, title) for path in paths]
    differences = _differences(results, {})
    _require_same_work(differences, results[0].run, force)
    kinds: list[list[str]] = [[]]
    named = []
    for run in results:
        differing = differences.get(run.run, [])
        if differing not in kinds:
            kinds.append(differing)
        named.append(
            dataclasses.replace(run, variant=f"{title} {letters(kinds.index(differing)).upper()}")
            if differences
            else run
        )
    table = rows.rows(named, lambda run: _flags(run, differences))
    candidates = (
        sections.stream_section(table),
        *spending.spending_sections(paths),
        spending.avoided_section(paths),
        sections.micro_benchmark_section(named),
        sections.node_section(named),
    )
    return Report(
        title=title,
        created=now.timestamp(),
        rows=table,
        conditions=conditions(named),
        method=method(results),
        warnings=_warnings(results, differences) + row_caveats(table, {}) + node_caveats(named, ()),
        commands=[shlex.join(["spotmpi", "run", names.display_path(path.spec)]) for path in paths],
        spec=paths[0].spec.read_text(encoding="utf-8") if is_file(paths[0].spec) else "",
        subfolder=f"{paths[0].id}/report",
        sections=[section for section in candidates if section],
    )


def _runs_without_allreduce(sweep: Sweep, runs_folder: Path) -> dict[tuple[str, int], list[TrialResult]]:
    """The runs without allreduce, by (variant, nodes)."""
    results: dict[tuple[str, int], list[TrialResult]] = {}
    for run in _with_role(sweep, runs_folder, WITHOUT_ALLREDUCE):
        results.setdefault((run.variant, run.nodes), []).append(run)
    return results


def _with_role(sweep: Sweep, runs_folder: Path, role: str) -> list[TrialResult]:
    return [result for _, result in _trials_with_role(sweep, runs_folder, role)]


def _trials_with_role(sweep: Sweep, runs_folder: Path, role: str) -> list[tuple[Trial, TrialResult]]:
    finished = [(trial, paths) for trial, paths in _finished(sweep, runs_folder, role) if is_folder(paths.folder)]
    return [(trial, trial_results.read(paths, trial.variant)) for trial, paths in finished]


def _baseline_caveats(sweep: Sweep, runs_folder: Path) -> list[str]:
    trials = _trials_with_role(sweep, runs_folder, BASELINE)
    before = [result for trial, result in trials if trial.repeat == 0]
    return baseline_caveats(before, [result for trial, result in trials if trial.repeat > 0])


def _newest(runs_folder: Path) -> str:
    sweeps = sweep_folders(runs_folder)
    if sweeps:
        return sweeps[-1].name
    recorded = runs.every(runs_folder)
    if recorded:
        return recorded[-1].id
    raise UnknownRun(
        [Problem("runs", str(runs_folder), "nothing is recorded there; use `spotmpi run` or `spotmpi bench` first")]
    )


def _requested_sweep(ids: Sequence[str], runs_folder: Path) -> Sweep | None:
    """The sweep that *ids* name, or None if they name runs; a sweep is reported alone."""
    known = [path.name for path in sweep_folders(runs_folder)]
    matching = [name for name in ids if name and any(path.startswith(name) for path in known)]
    matching = [name for name in matching if not is_file(RunPaths(runs_folder / name).events)]
    if not matching:
        return None
    if len(ids) > 1:
        raise input_error(
            "run",
            matching[0],
            "is a sweep, which is reported alone; give the ids of its runs to combine them with others",
        )
    sweep = find_sweep(matching[0], runs_folder)
    if sweep.id != matching[0]:  # runs of the sweep have ids like its own
        own = {run for trial in sweep.trials for run in trial.runs}
        others = [run.id for run in runs.every(runs_folder) if run.id.startswith(matching[0]) and run.id not in own]
        if others:
            remedy = f"matches sweep {sweep.id} and runs, such as {others[-1]}; write more of the id"
            raise UnknownRun([Problem("run", matching[0], remedy)])
    return sweep


def _finished(sweep: Sweep, runs_folder: Path, role: str) -> list[tuple[Trial, RunPaths]]:
    """The successful trials of a role, in the order of variants."""
    ordered = sorted((trial for trial in sweep.trials if trial.role == role), key=lambda trial: trial.number)
    trials = [(trial, execution.run_paths(trial, runs_folder)) for trial in ordered]
    order = [variant.name for variant in sweep.study.variants]
    succeeded = [(trial, paths) for trial, paths in trials if paths is not None]
    return sorted(succeeded, key=lambda pair: order.index(pair[0].variant))


def _differences(results: Sequence[TrialResult], declared: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """How runs differ from the first one, by run id."""
    first = results[0]
    differences = {}
    for run in results[1:]:
        on_purpose = {*declared.get(first.variant, ()), *declared.get(run.variant, ())}
        differing = trial_results.differences(first, run, on_purpose)
        if differing:
            differences[run.run] = differing
    return differences


def _require_same_work(differences: dict[str, list[str]], first: str, force: bool) -> None:
    if differences and not force:
        remedy = f"report them separately, or together and marked with {wording.option('force')}"
        raise InputError(
            [
                Problem("runs", None, f"{_difference_text(runs, what, first)}: {remedy}")
                for what, runs in _grouped(differences)
            ]
        )


def _grouped(differences: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """(difference, runs with that difference)."""
    grouped: dict[str, list[str]] = {}
    for run, differing in differences.items():
        grouped.setdefault("; ".join(differing), []).append(run)
    return list(grouped.items())


def _difference_text(runs: list[str], what: str, first: str) -> str:
    return f"{', '.join(runs)} measured {DIFFERENT} than {first} ({what})"


def _flags(run: TrialResult, differences: dict[str, list[str]]) -> list[str]:
    return [DIFFERENT] if run.run in differences else []


def _warnings(results: Sequence[TrialResult], differences: dict[str, list[str]]) -> list[str]:
    warnings = [_difference_text(runs, what, results[0].run) for what, runs in _grouped(differences)]
    if any(run.oversubscribed for run in results):
        warnings.append("Some runs had more threads than cores: their rates do not apply to dedicated machines.")
    if all(run.samples_per_iteration is None and not run.is_micro_benchmark for run in results):
        warnings.append(
            "No efficiency: the program does not report its samples per iteration; set "
            "metrics.samples_per_iteration in the spec."
        )
    return warnings


def _trial_order(sweep: Sweep) -> str:
    """The number and order of trials, in words."""
    study = sweep.study
    repeats = counted(study.repeats, "repeat")
    return (
        f"{counted(len(sweep.trials), 'trial')}: nodes {', '.join(map(str, study.nodes))}; {repeats}, each with all "
        f"configurations in its own random order (seed {study.seed}); failed trials are retried at most "
        f"{counted(study.retries, 'time')}."
    )


def _missing_trials(sweep: Sweep, finished: Sequence[tuple[Trial, RunPaths]]) -> list[str]:
    """Warnings about missing trials; *finished* are the successful ones."""
    removed = [trial for trial, paths in finished if not is_folder(paths.folder)]
    stopped = f"The study stopped: {sweep.limit_reached}. Raise the limit and run the same command to continue."
    warnings = [stopped] if sweep.limit_reached is not None else []
    for trials, others in (
        ([trial for trial in sweep.trials if trial.state == FAILED], "failed and are missing."),
        (removed, "are missing: the folders of their runs have been removed."),
        ([trial for trial in sweep.trials if not trial.finished], "have not run yet."),
    ):
        shown = trials if len(trials) <= _LISTED else trials[: _LISTED - 1]
        warnings += [_missing_trial(sweep, trial) for trial in shown]
        warnings += [f"{len(trials) - len(shown)} more trials {others}"] if len(shown) < len(trials) else []
    return warnings


def _missing_trial(sweep: Sweep, trial: Trial) -> str:
    name = f"Trial {trial.number} ({execution.describe(sweep.study, trial)})"
    if trial.state == FAILED:
        return f"{name} failed {counted(trial.failures, 'time')} and is missing: {trial.reason}"
    if trial.state == SUCCEEDED:
        return f"{name} is missing: the folder of its run {trial.runs[-1]} has been removed."
    return f"{name} has not {'finished' if trial.state == RUNNING else 'run'} yet."
