"""From names of runs or of a sweep to a report; runs of different work are not put side by side."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path

from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem, UnknownRun, input_error
from spotmpi.core.names import RunPaths
from spotmpi.report import caveats, nodes, parts, report, rows, trial_results
from spotmpi.report.report import Report
from spotmpi.report.trial_results import Measured
from spotmpi.runs import reader as runs
from spotmpi.study import execution, sweep
from spotmpi.study.sweep import Sweep
from spotmpi.study.trial import ALLREDUCE, DRIFT, FAILED, MEASURED, READ, SILENT, SUCCEEDED, Trial

DIFFERENT = "different work"
_MUCH = 64 << 20  # bytes of metrics, from which on further processes are worth their start


def gather(wanted: Sequence[str], runs_folder: Path, now: datetime, force: bool = False) -> Report:
    """The report of one sweep or of any number of runs; ids may be shortened, none means the newest sweep or run.

    Raises:
        UnknownRun: an id fits nothing, or too much.
        InputError: the runs are of different work (with *force* they are shown all the same, and marked).
    """
    if not wanted:
        wanted = [_newest(runs_folder)]
    it = _sweep(wanted, runs_folder)
    if it:
        return of_sweep(it, runs_folder, now, force)
    return of_runs([runs.find(run, runs_folder) for run in dict.fromkeys(wanted)], now, force)


def of_sweep(it: Sweep, runs_folder: Path, now: datetime, force: bool = False) -> Report:
    """The report of a sweep, finished or not."""
    there = _finished(it, runs_folder, MEASURED)
    found = _read([(paths, trial.variant) for trial, paths in there if paths.folder.is_dir()])
    if not found:
        raise input_error(
            "sweep", it.id, "no trial of it is on record as succeeded; the same bench command goes on with it"
        )
    unlike = _unlike(found, {variant.name: variant.keys for variant in it.design.variants})
    _refuse(unlike, found[0].run, force)
    design = it.design
    silent = _by_cell(it, runs_folder)
    probes = [run for role in (ALLREDUCE, READ) for run in _with_role(it, runs_folder, role)]
    table = rows.rows(found, lambda run: _marks(run, unlike))
    made = Report(
        title=design.spec.title,
        created=now.timestamp(),
        rows=table,
        conditions=[("Sweep", it.id), *report.conditions(found[0])],
        method=[_order(it), *report.method(found)],
        warnings=[
            *_warnings(found, unlike),
            *_missing(it, there),
            *caveats.doubts(table, silent),
            *nodes.doubts(found, probes),
            *_drift(it, runs_folder),
        ],
        commands=[it.command],
        spec=design.spec.to_toml(),
        place=f"{it.folder.relative_to(runs_folder)}/report",
        variants=[(variant.name, ", ".join(variant.settings) or "the spec itself") for variant in design.variants],
        silent=silent,
        probes=probes,
        price=next(iter(design.budget.told), None),
        specs=[variant.spec for variant in design.variants],
    )
    return dataclasses.replace(made, sections=parts.of_sweep(it, made, runs_folder))


def _read(wanted: Sequence[tuple[RunPaths, str]]) -> list[Measured]:
    """The runs and variants as recorded, on all cores where there is much to read."""
    sizes = [paths.metrics.stat().st_size for paths, _ in wanted if paths.metrics.is_file()]
    if sum(sizes) < _MUCH:
        return [trial_results.read(paths, variant) for paths, variant in wanted]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(trial_results.read, *zip(*wanted, strict=True), chunksize=4))


def of_runs(paths: Sequence[RunPaths], now: datetime, force: bool = False) -> Report:
    """The report of runs that need not come from one sweep."""
    first = trial_results.read(paths[0], "")
    title = first.spec["name"] or runs.state(paths[0]).name
    found = [trial_results.read(path, title) for path in paths]
    unlike = _unlike(found, {})
    _refuse(unlike, found[0].run, force)
    kinds: list[list[str]] = [[]]
    named = []
    for run in found:
        differences = unlike.get(run.run, [])
        if differences not in kinds:
            kinds.append(differences)
        letter = chr(ord("A") + kinds.index(differences))
        named.append(dataclasses.replace(run, variant=f"{title} {letter}") if unlike else run)
    table = rows.rows(named, lambda run: _marks(run, unlike))
    return Report(
        title=title,
        created=now.timestamp(),
        rows=table,
        conditions=report.conditions(found[0]),
        method=report.method(found),
        warnings=_warnings(found, unlike) + caveats.doubts(table, {}) + nodes.doubts(named, ()),
        commands=[shlex.join(["spotmpi", "run", names.shown(path.spec)]) for path in paths],
        spec=paths[0].spec.read_text() if paths[0].spec.is_file() else "",
        place=f"{paths[0].id}/report",
        sections=[section for section in (nodes.section(named),) if section],
    )


def _by_cell(it: Sweep, runs_folder: Path) -> dict[tuple[str, int], list[Measured]]:
    """The runs without exchange."""
    found: dict[tuple[str, int], list[Measured]] = {}
    for run in _with_role(it, runs_folder, SILENT):
        found.setdefault((run.variant, run.nodes), []).append(run)
    return found


def _with_role(it: Sweep, runs_folder: Path, role: str) -> list[Measured]:
    there = [(trial, paths) for trial, paths in _finished(it, runs_folder, role) if paths.folder.is_dir()]
    return [trial_results.read(paths, trial.variant) for trial, paths in there]


def _drift(it: Sweep, runs_folder: Path) -> list[str]:
    there = [(trial, paths) for trial, paths in _finished(it, runs_folder, DRIFT) if paths.folder.is_dir()]
    before, after = (
        [trial_results.read(paths, trial.variant) for trial, paths in there if (trial.repeat == 0) == first]
        for first in (True, False)
    )
    return caveats.drift(before, after)


def _newest(runs_folder: Path) -> str:
    sweeps = sweep.every(runs_folder)
    if sweeps:
        return sweeps[-1].name
    recorded = runs.every(runs_folder)
    if recorded:
        return recorded[-1].id
    raise UnknownRun([Problem("report", None, f"nothing is recorded in {runs_folder}; run or bench something first")])


def _sweep(wanted: Sequence[str], runs_folder: Path) -> Sweep | None:
    """The sweep that is meant, or None where runs are; a sweep stands alone."""
    known = [path.name for path in sweep.every(runs_folder)]
    meant = [name for name in wanted if name and any(path.startswith(name) for path in known)]
    meant = [name for name in meant if not (runs_folder / name / "events.jsonl").is_file()]
    if not meant:
        return None
    if len(wanted) > 1:
        raise input_error(
            "report", meant[0], "is a sweep, which is reported alone; name its runs to mix them with others"
        )
    return sweep.find(meant[0], runs_folder)


def _finished(it: Sweep, runs_folder: Path, role: str) -> list[tuple[Trial, RunPaths]]:
    """The trials of that role that count, in the order of variants."""
    ordered = sorted((trial for trial in it.trials if trial.role == role), key=lambda trial: trial.number)
    found = [(trial, execution.paths_of(trial, runs_folder)) for trial in ordered]
    order = [variant.name for variant in it.design.variants]
    kept = [(trial, paths) for trial, paths in found if paths is not None]
    return sorted(kept, key=lambda pair: order.index(pair[0].variant))


def _unlike(found: Sequence[Measured], declared: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """What differs from the first run, by run id; only runs that differ are there."""
    first = found[0]
    unlike = {}
    for run in found[1:]:
        on_purpose = {*declared.get(first.variant, ()), *declared.get(run.variant, ())}
        differences = trial_results.differences(first, run, on_purpose)
        if differences:
            unlike[run.run] = differences
    return unlike


def _refuse(unlike: dict[str, list[str]], first: str, force: bool) -> None:
    if unlike and not force:
        remedy = "report them apart, or side by side and marked with --force"
        raise InputError(
            [Problem("runs", None, f"{_of_work(runs, what, first)}: {remedy}") for what, runs in _alike(unlike)]
        )


def _alike(unlike: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """(what differs, the runs of which that is true)."""
    found: dict[str, list[str]] = {}
    for run, differences in unlike.items():
        found.setdefault("; ".join(differences), []).append(run)
    return list(found.items())


def _of_work(runs: list[str], what: str, first: str) -> str:
    return f"{', '.join(runs)} {'is' if len(runs) == 1 else 'are'} {DIFFERENT} than {first} ({what})"


def _marks(run: Measured, unlike: dict[str, list[str]]) -> list[str]:
    return [DIFFERENT] if run.run in unlike else []


def _warnings(found: Sequence[Measured], unlike: dict[str, list[str]]) -> list[str]:
    said = [_of_work(runs, what, found[0].run) for what, runs in _alike(unlike)]
    if any(run.oversubscribed for run in found):
        said.append("Some runs had more threads than cores: their rates say little about machines of their own.")
    if all(run.samples_per_iteration is None for run in found):
        said.append(
            "The program does not tell its samples per iteration, so there is no efficiency; "
            "metrics.samples_per_iteration in the spec gives it."
        )
    return said


def _order(it: Sweep) -> str:
    """How many trials there are, and in which order they were run."""
    design = it.design
    return (
        f"{len(it.trials)} trials: nodes {', '.join(map(str, design.nodes))}, {design.repeats} repeats, each through "
        f"all combinations in a random order of its own (seed {design.seed}); a failed trial is tried again at most "
        f"{design.retries} times."
    )


def _missing(it: Sweep, there: Sequence[tuple[Trial, RunPaths]]) -> list[str]:
    """What keeps the sweep from being whole, of which the trials *there* succeeded."""
    removed = [trial.number for trial, paths in there if not paths.folder.is_dir()]
    cut = [f"The study was cut off: {it.cut}. The same command goes on with a higher limit."] if it.cut else []
    return cut + [_of_trial(it, t) for t in it.trials if t.state != SUCCEEDED or t.number in removed]


def _of_trial(it: Sweep, trial: Trial) -> str:
    what = f"Trial {trial.number} ({execution.describe(it.design, trial)})"
    if trial.state == FAILED:
        return f"{what} failed {trial.failures} times and is missing: {trial.reason}"
    if trial.state == SUCCEEDED:
        return f"{what} is missing: the folder of its run {trial.runs[-1]} has been removed."
    return f"{what} has not been run yet."
