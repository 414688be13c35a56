"""Carrying out a sweep, one trial after the other, on whatever backend runs them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spotmpi.agent import record
from spotmpi.core import names
from spotmpi.core.errors import EXIT_INTERRUPTED, InputError, Problem, SpotmpiError, UnknownRun
from spotmpi.runs import fingerprint
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.study import sweep
from spotmpi.study.design import Design
from spotmpi.study.sweep import Sweep
from spotmpi.study.trial import ALLREDUCE, DRIFT, FAILED, MEASURED, PENDING, READ, RUNNING, SUCCEEDED, Trial

Say = Callable[[str], None]


class Runner(Protocol):
    """Runs trials somewhere and tells how they went."""

    def require_valid(self, spec: JobSpec) -> None:
        """Raise InputError with everything that keeps *spec* from running there."""
        ...

    def new_id(self, spec: JobSpec) -> str:
        """An id that no run has yet."""
        ...

    def run(self, spec: JobSpec, run: str) -> RunState:
        """Run *spec* under that id, to its end."""
        ...

    def follow(self, run: str) -> RunState:
        """Wait for the end of a run that was started before; UnknownRun where it never was."""
        ...


class Stopped(SpotmpiError):
    """A trial was stopped by its user, and the sweep with it."""

    exit_code = EXIT_INTERRUPTED


def require_valid(design: Design, runner: Runner) -> None:
    """Raise InputError with what keeps any trial from running, before the first of them starts."""
    problems: dict[str, Problem] = {}
    for name, nodes in design.cells:
        try:
            runner.require_valid(design.variant(name).spec.model_copy(update={"nodes": nodes}))
        except InputError as error:
            problems.update({str(problem): problem for problem in error.problems})
    if problems:
        raise InputError(list(problems.values()))


@dataclass(frozen=True)
class Recording:
    """Where a sweep is recorded, under which id if it is a new one, and the place where its trials run."""

    runs_folder: Path
    new_id: str
    place: str = sweep.LOCAL


def open_sweep(design: Design, recording: Recording, fresh: bool, say: Say) -> Sweep:
    """The sweep to carry out: the newest unfinished one of the same design, place and work, else a new one.

    *fresh* always makes a new one. What is recorded already is never changed by this.
    """
    identity = fingerprint.identify(design.spec, local=recording.place == sweep.LOCAL)
    found = None if fresh else sweep.unfinished(recording.runs_folder, design, recording.place)
    if found:
        differences = fingerprint.differences(found.work, identity)
        if not differences:
            done = sum(trial.over for trial in found.trials)
            say(f"continuing sweep {found.id}: {done} of {len(found.trials)} trials are done (--new starts over)")
            found.design = design  # limits may have changed
            return found
        say(f"sweep {found.id} is unfinished but was of different work ({differences[0]}): starting a new one")
    folder = sweep.folder_of(recording.new_id, recording.runs_folder)
    made = Sweep(folder, design, identity, time.time(), recording.place)
    made.create()
    return made


def carry_out(it: Sweep, runner: Runner, say: Say) -> None:
    """Run all trials that are left, as far as the limits allow; what became of each is on record in *it*.

    Raises:
        Stopped: a trial was stopped; the same call goes on with it later.
        RunInUse: another process is at it.
    """
    budget = it.design.budget
    with it.held():
        it.trials = sweep.load(it.folder).trials
        if it.design.is_study:
            say(f"estimate: {budget.estimate(it.trials)}")
        it.cut = None
        for at in range(len(it.trials)):
            if it.trials[at].over:
                continue
            it.cut = budget.exhausted(it.trials[at], it.trials)
            if it.cut:
                say(f"cut off: {it.cut}; with a higher limit the same command goes on")
                break
            _carry_out(it, it.trials[at], runner, say)
        it.save()


def _carry_out(it: Sweep, trial: Trial, runner: Runner, say: Say) -> None:
    spec = it.design.spec_of(trial)
    if trial.state == RUNNING:
        trial = _take_up(it, trial, runner, say)
    while not trial.over:
        run = runner.new_id(spec)
        trial = dataclasses.replace(trial, state=RUNNING, runs=(*trial.runs, run))
        it.update(trial)
        say(f"trial {trial.number} of {len(it.trials)}: {describe(it.design, trial)}, run {run}")
        trial = it.update(_judged(it, trial, runner.run(spec, run), say))


def _take_up(it: Sweep, trial: Trial, runner: Runner, say: Say) -> Trial:
    """What became of a trial that was running when the sweep was broken off; pending where nothing counts of it."""
    run = trial.runs[-1]
    try:
        say(f"trial {trial.number} of {len(it.trials)}: taking up run {run}")
        state = runner.follow(run)
    except UnknownRun:
        return it.update(dataclasses.replace(trial, state=PENDING, runs=trial.runs[:-1]))
    if state.state in (record.SUCCEEDED, record.FAILED):
        return it.update(_judged(it, trial, state, say))
    return it.update(dataclasses.replace(trial, state=PENDING))


def _judged(it: Sweep, trial: Trial, state: RunState, say: Say) -> Trial:
    if state.submitted is not None and state.ended is not None:
        trial = dataclasses.replace(trial, seconds=trial.seconds + state.ended - state.submitted)
    if state.state == record.SUCCEEDED:
        return dataclasses.replace(trial, state=SUCCEEDED, reason=None)
    if state.state == record.STOPPED:
        it.update(dataclasses.replace(trial, state=PENDING))
        raise Stopped(f"run {state.id} was stopped, and sweep {it.id} with it; the same command goes on where it was")
    failures = trial.failures + 1
    last = failures > it.design.retries
    tries = f"{failures} of {it.design.retries + 1}"
    say(f"trial {trial.number} failed (try {tries}): {state.reason or state.state}")
    return dataclasses.replace(
        trial, state=FAILED if last else PENDING, failures=failures, reason=state.reason or state.state
    )


def describe(design: Design, trial: Trial) -> str:
    """A trial in words."""
    nodes = "1 node" if trial.nodes == 1 else f"{trial.nodes} nodes"
    variant = f"{trial.variant}, " if len(design.variants) > 1 else ""
    if trial.role == DRIFT:
        return f"{variant}{nodes}, to see drift, {'before' if trial.repeat == 0 else 'after'} all others"
    if trial.role in (ALLREDUCE, READ):
        return f"{variant}{nodes}, {trial.role} benchmark before all others"
    role = f", {trial.role}" if trial.role != MEASURED else ""
    return f"{variant}{nodes}{role}, repeat {trial.repeat} of {design.repeats}"


def paths_of(trial: Trial, runs_folder: Path) -> names.RunPaths | None:
    """The run that counts for a trial, or None where none has finished."""
    return names.RunPaths(runs_folder / trial.runs[-1]) if trial.state == SUCCEEDED else None
