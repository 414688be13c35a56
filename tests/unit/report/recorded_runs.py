"""Runs, sweeps and studies with known contents, recorded as finished ones are, and their reports."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol
from spotmpi.core.names import RunPaths
from spotmpi.report.gather import gather
from spotmpi.report.report import Report
from spotmpi.report.rows import Row
from spotmpi.spec.job import JobSpec
from spotmpi.study import study_file
from spotmpi.study.study import SUCCEEDED, WITHOUT_ALLREDUCE, Study, StudyOptions, Trial, grid_study
from spotmpi.study.sweep import Sweep, sweep_folder

START = 1_789_000_000.0
NOW = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
SPEC = JobSpec(name="digits", image="chainermn", program="digits", args=["--global-batch", "64"])


@dataclass(frozen=True)
class Recorded:
    """What a run came to; every iteration takes 1 / rate seconds, give or take *wobble* of that."""

    rate: float = 10.0
    iterations: int = 60
    samples: int | None = 64
    scaling: str | None = "strong"
    loss: float | None = 0.25
    accuracy: float | None = 0.97
    wobble: float = 0.01
    slows: float = 0.0  # how much longer the last iteration takes than the first, as a share
    state: str = "succeeded"
    interrupted_at: tuple[int, ...] = ()  # the next attempt starts 10 iterations before
    by_arrival: bool = False
    ranks: tuple[float, ...] = ()  # mean seconds of each
    waited: float | None = None  # the share of time in which the host waits for batches
    oversubscribed: bool = False
    work: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    stream: tuple[dict[str, Any], ...] = ()  # the reports of its ranks


def work_of(spec: JobSpec) -> dict[str, Any]:
    """The identity of work on a machine that is always the same."""
    return {
        "program": spec.program or "train.py",
        "args": list(spec.args),
        "seed": None,
        "env": dict(spec.env),
        "launcher": spec.launcher,
        "resources": spec.resources.model_dump(),
        "image": {"name": "chainermn", "lock": "a" * 64},
        "code": {"files": {"programs": "b" * 64}, "commit": "c" * 40, "diff": None},
        "data": None,
        "machine": {"cpu": "Test CPU", "cores": 8, "memory_gib": 32, "gpus": [], "system": "Linux 6"},
        "versions": {"open_mpi": "5.0.11"},
    }


def record(runs: Path, run: str, spec: JobSpec, recorded: Recorded) -> RunPaths:
    """Write the folder of one run."""
    paths = RunPaths(runs / run)
    paths.folder.mkdir(parents=True)
    paths.spec.write_text(spec.to_toml())
    plan = {"run": run, "work": {**work_of(spec), **recorded.work}, "oversubscribed": recorded.oversubscribed}
    paths.plan.write_text(json.dumps(plan))
    lines, clock = _metrics(spec, recorded)
    _write(paths.metrics, lines)
    events = [{"t": START, "event": "submitted", "name": spec.title}, {"t": START, "event": "started", "attempt": 1}]
    for number, _ in enumerate(recorded.interrupted_at, 1):
        events.append({"t": START + number, "event": "interrupted", "interruptions": number, "reason": "reclaimed"})
        events.append({"t": START + number, "event": "started", "attempt": number + 1})
    if recorded.state != "running":
        events.append({"t": clock, "event": recorded.state})
    _write(paths.events, events)
    return paths


def _metrics(spec: JobSpec, recorded: Recorded) -> tuple[list[dict[str, Any]], float]:
    context = {
        "world_size": spec.world_size,
        "scaling": recorded.scaling,
        "samples_per_iteration": recorded.samples,
        "total_iterations": recorded.iterations,
        "versions": {"framework": "1.0"},
        **recorded.context,
    }
    clock = START + 1
    attempt = 1
    lines: list[dict[str, Any]] = []

    def add(kind: str, values: dict[str, Any]) -> None:
        lines.append({"t": clock, "attempt": attempt, "member": "node/0", "kind": kind, **values})

    bounds = [0, *recorded.interrupted_at, recorded.iterations]
    for attempt in range(1, len(bounds)):
        add("context", context)
        for last in range(max(bounds[attempt - 1] - 10, 0) + 10, bounds[attempt] + 1, 10):
            seconds = [_seconds(recorded, at) for at in range(last - 9, last + 1)]
            clock += sum(seconds)
            values: dict[str, Any] = {"iteration": last}
            values |= {} if recorded.loss is None else {"loss": recorded.loss * recorded.iterations / last}
            values |= {"ranks": protocol.pack([[mean] * 10 for mean in recorded.ranks])} if recorded.ranks else {}
            values |= {} if recorded.waited is None else {"waited": recorded.waited * sum(seconds)}
            add("metric", values | ({} if recorded.by_arrival else {"seconds": seconds}))
    if recorded.state == "succeeded":
        quality = {"loss": recorded.loss, "accuracy": recorded.accuracy}
        reported = {key: value for key, value in quality.items() if value is not None}
        add("result", {"iteration": recorded.iterations, **reported, **recorded.result})
    for report in recorded.stream:
        add("stream", report)
    return lines, clock


def _seconds(recorded: Recorded, at: int) -> float:
    return (
        (1 + recorded.wobble * (at * 7 % 11 - 5) / 5) * (1 + recorded.slows * at / recorded.iterations) / recorded.rate
    )


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def record_trials(
    folder: Path, study: Study, outcome: Callable[[Trial], Recorded | None], run: str = "run-{number}"
) -> Sweep:
    """A sweep in which each trial had its outcome, in a run named after it; without one a trial has not run yet."""
    sweep = Sweep(folder, study, work_of(study.spec), START)
    sweep.create()
    for trial in study.trials():
        if recorded := outcome(trial):
            name = run.format(**vars(trial))
            record(folder.parent.parent, name, study.spec_of(trial), recorded)
            sweep.update(replace(trial, state=SUCCEEDED, runs=(name,)))
    return sweep


def record_sweep(
    runs: Path, spec: JobSpec, parameters: StudyOptions, recorded: dict[tuple[str, int], list[Recorded]]
) -> Sweep:
    """A sweep with the outcomes of the repeats for each variant and node count; fewer than requested are missing."""

    def outcome(trial: Trial) -> Recorded | None:
        repeats = recorded[trial.variant, trial.nodes]
        return repeats[trial.repeat - 1] if trial.repeat <= len(repeats) else None

    study = grid_study(spec, parameters)
    return record_trials(sweep_folder("sweep-1", runs), study, outcome, "run-{variant}-{nodes}-{repeat}")


def study_report(
    runs: Path,
    parameters: dict[str, Any],
    rates: dict[tuple[str, int], float],
    changed: dict[tuple[str, int], Recorded] | None = None,
    **more: Any,
) -> Report:
    """The report of a study; each cell has its rate, give or take a per cent from trial to trial.

    Trials without allreduce are a quarter faster, and *changed* holds by (role, repeat) what else a trial came to.
    """

    def outcome(trial: Trial) -> Recorded:
        rate = rates[trial.variant, trial.nodes] * (1 + 0.01 * (trial.repeat % 3 - 1))
        recorded = (changed or {}).get((trial.role, trial.repeat), Recorded())
        faster = 1.25 if trial.role == WITHOUT_ALLREDUCE else 1.0
        return replace(recorded, rate=rate * faster * recorded.rate / 10.0)

    study = study_file.from_values({"spec": SPEC.canonical(), "parameters": parameters, **more})
    record_trials(sweep_folder("study-1", runs), study, outcome)
    return gather([], runs, NOW)


def over_nodes(runs: Path, *recorded: tuple[int, Recorded], force: bool = False, spec: JobSpec = SPEC) -> Report:
    """The report of one run for each (nodes, recorded result)."""
    ids = []
    for index, (nodes, what) in enumerate(recorded):
        ids.append(f"run-{index}")
        record(runs, ids[-1], spec.model_copy(update={"nodes": nodes}), what)
    return gather(ids, runs, NOW, force)


def sweep_report(runs: Path) -> Report:
    parameters = StudyOptions([1, 2, 4], ["double:args+=--double-buffering"], repeats=2)
    rates = {("base", 1): 10.0, ("base", 2): 18.0, ("base", 4): 30.0}
    rates |= {("double", 1): 10.2, ("double", 2): 20.0, ("double", 4): 43.5}
    recorded = {key: [Recorded(rate), Recorded(rate * 1.03, accuracy=0.975)] for key, rate in rates.items()}
    recorded["base", 4][1] = replace(recorded["base", 4][1], interrupted_at=(30,), iterations=80)
    record_sweep(runs, SPEC, parameters, recorded)
    return gather(["sweep-1"], runs, NOW)


def only(report: Report) -> Row:
    (row,) = report.rows
    return row
