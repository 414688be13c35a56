"""Executes a sweep, one trial after the other, on any backend, and records the machines that trials were on."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spotmpi.agent import progress, protocol, record
from spotmpi.agent.files import is_file, write_atomically
from spotmpi.backends.base import Backend
from spotmpi.backends.targets import Messages, Target, follow, new_run_id, submit
from spotmpi.core import code_folder, wording
from spotmpi.core.environment import Environment
from spotmpi.core.environment import recorded as recorded_environment
from spotmpi.core.errors import EXIT_INTERRUPTED, InputError, Problem, SpotmpiError, UnknownRun
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, counted, printable
from spotmpi.runs import fingerprint, reader, recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.spec import validate
from spotmpi.spec.job import JobSpec
from spotmpi.study.study import BASELINE, FAILED, MEASURED, PENDING, RUNNING, SUCCEEDED, Study, Trial
from spotmpi.study.sweep import Sweep, load_sweep, sweep_folder, unfinished_sweep

if TYPE_CHECKING:
    from spotmpi.aws.account import Aws
    from spotmpi.backends.kubernetes.client.view import ClusterReader


Clock = Callable[[], float]  # seconds


class TrialRunner(Protocol):
    """Runs trials on a backend."""

    def require_valid(self, spec: JobSpec, wrong: Iterable[str] = ()) -> None:
        """Raise InputError with every reason why *spec* cannot run there, whatever the values of its *wrong* keys."""
        ...

    def new_id(self, spec: JobSpec) -> str:
        """An id for a new run."""
        ...

    def run(self, spec: JobSpec, run: str) -> RunState:
        """Run *spec* under that id and return its final state."""
        ...

    def follow(self, run: str) -> RunState:
        """Wait for the end of a run that was started earlier; UnknownRun if it never was."""
        ...


class SweepStopped(SpotmpiError):
    """The user stopped a trial, and the sweep with it."""

    exit_code = EXIT_INTERRUPTED


def require_valid(study: Study, runner: TrialRunner, wrong: Iterable[str] = ()) -> None:
    """Raise InputError with every reason why a trial of *study* cannot run, whatever its *wrong* keys of the spec."""
    problems: dict[str, Problem] = {}
    for name, nodes in study.configurations:
        try:
            runner.require_valid(study.variant(name).spec.model_copy(update={"nodes": nodes}), wrong)
        except InputError as error:
            problems.update({str(problem): problem for problem in error.problems})
    if problems:
        raise InputError(list(problems.values()))


def open_sweep(study: Study, on: Target, new_id: str, fresh: bool, echo: Echo) -> Sweep:
    """The newest unfinished sweep of the same study, target and work, or a new one; *fresh* always makes a new one."""
    identity = fingerprint.identify(study.spec, local=on.is_local)
    unfinished = None if fresh else unfinished_sweep(on.folder, study, on.name)
    if unfinished:
        differences = fingerprint.differences(unfinished.work, identity)
        if not differences:
            done = sum(trial.finished for trial in unfinished.trials)
            progress = f"{done} of {wording.counted(len(unfinished.trials), 'trial')} done"
            echo(f"continuing sweep {unfinished.id}: {progress} ({wording.option('new')} starts over)")
            unfinished.study = study  # limits may have changed
            return unfinished
        newer = _changed_since(study.spec, unfinished.created) if differences[0].startswith("code.") else None
        changed = f"; changed since: {printable(newer)}, which .gitignore may leave out" if newer else ""
        echo(f"starting a new sweep: unfinished {unfinished.id} measured different work ({differences[0]}){changed}")
    sweep = Sweep(sweep_folder(new_id, on.folder), study, identity, time.time(), on.name)
    sweep.create()
    return sweep


def _changed_since(spec: JobSpec, moment: float) -> str | None:
    """The newest file of the code of *spec* if it is newer than *moment*, in Unix seconds."""
    times = {name: os.lstat(path).st_mtime for name, path in code_folder.sources(*spec.code_paths).items()}
    newest = max(times, key=times.__getitem__, default=None)
    return newest if newest is not None and times[newest] > moment else None


def run_sweep(sweep: Sweep, runner: TrialRunner, echo: Echo, clock: Clock = time.monotonic) -> None:
    """Run the remaining trials within the limits, recording each in *sweep*; *clock* is one that nobody sets.

    Raises:
        SweepStopped: a trial was stopped; the same call continues later.
        SpotmpiError: the first training reported nothing that could be measured, so the others would not either.
        RunInUse: another process executes the sweep.
    """
    budget = sweep.study.budget
    with sweep.lock():
        sweep.trials = load_sweep(sweep.folder).trials
        if sweep.study.from_file:
            echo(f"estimate: {budget.estimate(sweep.trials)}")
        sweep.limit_reached = None
        for trial in list(sweep.trials):
            if trial.state == RUNNING:  # whatever the limits: it may have ended long ago, and costs until it does
                trial = _resume_trial(sweep, trial, runner, echo, clock)
            while not trial.finished and sweep.limit_reached is None:
                sweep.limit_reached = budget.exhausted(trial, sweep.trials)
                if sweep.limit_reached is None:
                    trial = _run_trial(sweep, trial, runner, echo, clock)
        if sweep.limit_reached is not None:
            echo(f"stopped: {sweep.limit_reached}; raise the limit and run the same command to continue")
        sweep.save()


def _run_trial(sweep: Sweep, trial: Trial, runner: TrialRunner, echo: Echo, clock: Clock) -> Trial:
    """The outcome of another try of a trial."""
    spec = sweep.study.spec_of(trial)
    run = runner.new_id(spec)
    trial = sweep.update(dataclasses.replace(trial, state=RUNNING, runs=(*trial.runs, run)))
    echo(f"trial {trial.number} of {len(sweep.trials)}: {describe(sweep.study, trial)}, run {run}")
    begun = clock()
    state = runner.run(spec, run)
    return sweep.update(_with_outcome(sweep, _with_time(trial, state, clock() - begun), state, echo))


def _resume_trial(sweep: Sweep, trial: Trial, runner: TrialRunner, echo: Echo, clock: Clock) -> Trial:
    """The outcome of a trial that was running when the sweep was interrupted; pending if it has to run again."""
    run, begun = trial.runs[-1], clock()
    try:
        echo(f"trial {trial.number} of {len(sweep.trials)}: resuming run {run}")
        state = runner.follow(run)
    except UnknownRun:
        return sweep.update(dataclasses.replace(trial, state=PENDING, runs=trial.runs[:-1]))
    trial = _with_time(trial, state, clock() - begun)
    if state.state in (record.SUCCEEDED, record.FAILED):
        return sweep.update(_with_outcome(sweep, trial, state, echo))
    return sweep.update(dataclasses.replace(trial, state=PENDING))


def _with_time(trial: Trial, state: RunState, seconds: float) -> Trial:
    """*trial* with the *seconds* that its last try took here, or those of its attempts, which its agents measured.

    These are more where nobody followed the run, or the machine that did was asleep. Neither is of a clock that is set.
    """
    summary = (reader.summary(RunPaths(Path(state.folder))) if state.folder else None) or {}
    measured = sum(attempt.get("elapsed", 0.0) for attempt in summary.get("attempts", ()))
    return dataclasses.replace(trial, seconds=trial.seconds + max(seconds, measured))


def _with_outcome(sweep: Sweep, trial: Trial, state: RunState, echo: Echo) -> Trial:
    """*trial* after its run has ended: done, failed for good, or to be tried again.

    Raises:
        SweepStopped: a user has stopped the run.
        SpotmpiError: it reported no iteration.
    """
    if state.state == record.SUCCEEDED:
        _require_reports(sweep, trial, state)
        return dataclasses.replace(trial, state=SUCCEEDED, reason=None)
    if state.state == record.STOPPED:
        sweep.update(dataclasses.replace(trial, state=PENDING))
        raise SweepStopped(f"run {state.id} was stopped, and sweep {sweep.id} with it; the same command continues it")
    failures = trial.failures + 1
    fatal = any(line.get("kind") == protocol.FATAL for line in reader.lines(RunPaths(Path(state.folder)).metrics))
    last = fatal or failures > sweep.study.retries
    tries = "another try cannot help" if fatal else f"try {failures} of {sweep.study.retries + 1}"
    echo(f"trial {trial.number} failed ({tries}): {state.reason or state.state}")
    return dataclasses.replace(
        trial, state=FAILED if last else PENDING, failures=failures, reason=state.reason or state.state
    )


def _require_reports(sweep: Sweep, trial: Trial, state: RunState) -> None:
    """End the sweep with *trial* where neither it nor an earlier training has reported an iteration or a batch."""
    trained = any(each.state == SUCCEEDED and not each.is_micro_benchmark for each in sweep.trials)
    if trial.is_micro_benchmark or trained or state.iteration is not None or state.stream is not None:
        return
    failures = trial.failures + 1
    sweep.update(dataclasses.replace(trial, state=FAILED, failures=failures, reason="it reported no iteration"))
    raise SpotmpiError(
        f"trial {trial.number}, run {state.id}, reported no iteration, and sweep {sweep.id} ends with it: "
        f"{progress.REMEDY}"
    )


def describe(study: Study, trial: Trial) -> str:
    """A trial as text, such as "2 nodes, repeat 1 of 3"."""
    nodes = counted(trial.nodes, "node")
    variant = f"{trial.variant}, " if len(study.variants) > 1 else ""
    if trial.role == BASELINE:
        return f"{variant}{nodes}, baseline {'before' if trial.repeat == 0 else 'after'} all other trials"
    if trial.is_micro_benchmark:
        return f"{variant}{nodes}, {trial.role} micro-benchmark"
    role = f", {trial.role}" if trial.role != MEASURED else ""
    return f"{variant}{nodes}{role}, repeat {trial.repeat} of {study.repeats}"


def run_paths(trial: Trial, runs_folder: Path) -> RunPaths | None:
    """The successful run of a trial, or None."""
    return RunPaths(runs_folder / trial.runs[-1]) if trial.state == SUCCEEDED else None


_TRIAL = Messages(
    "stopping the trial and the sweep; Ctrl-C again kills", "killing the trial", "the same command continues the study"
)


class Entries(Protocol):
    """What pods need of a store: the module `api.volume_entries`."""

    def on_volume(self, spec: JobSpec, persistent: tuple[str, ...]) -> JobSpec:
        """*spec* that reads data sets and models from the run volume."""
        ...

    def send(self, spec: JobSpec, plan: Mapping[str, Any], echo: Echo) -> None:
        """Copy them there."""
        ...


class BackendRunner:
    """Runs trials on *backend*, whose records are in *runs_folder*; Ctrl-C stops the current trial.

    *on_event* receives the events of the trials, *echo* all other messages. In pods trials read the *entries* of the
    store from the run volume.
    """

    def __init__(
        self,
        backend: Backend,
        runs_folder: Path,
        on_event: Callable[[Event], None],
        echo: Echo,
        entries: Entries | None = None,
    ) -> None:
        self._backend = backend
        self._runs_folder = runs_folder
        self._placement = PlacementRecorder(echo)
        self._on_event = on_event
        self._echo = echo
        self._entries = entries
        self._sent: set[str] = set()  # what trials read that is on the run volume
        self._shown_notes: set[str] = set()

    def require_valid(self, spec: JobSpec, wrong: Iterable[str] = ()) -> None:
        """Raise InputError with every reason why *spec* cannot run here, whatever the values of its *wrong* keys."""
        placed, capabilities = self._placed(spec)
        validate.require_valid(placed, capabilities, wrong)

    def _placed(self, spec: JobSpec) -> tuple[JobSpec, validate.TargetCapabilities]:
        """*spec* with the places from which a run of it reads, and what the target offers."""
        capabilities = self._backend.inspect(spec)
        if self._entries is None or capabilities.persistent is None:
            return spec, capabilities
        return self._entries.on_volume(spec, capabilities.persistent), capabilities

    def new_id(self, spec: JobSpec) -> str:
        """An id for a new run."""
        return new_run_id(spec)

    def run(self, spec: JobSpec, run: str) -> RunState:
        """Run *spec* under that id and return its final state."""
        if self._entries is not None:
            spec, _ = self._placed(spec)
        plan = self._backend.plan(spec, run, self._echo_once)
        for note in plan["notes"]:
            self._echo_once(note)
        read = repr((spec.data, spec.init, spec.stream and spec.stream.source))
        if self._entries is not None and read not in self._sent:
            self._entries.send(spec, plan, self._echo)
            self._sent.add(read)
        submit(self._backend, spec, plan, self._echo)
        return self.follow(run)

    def _echo_once(self, text: str) -> None:
        """Show *text* unless an earlier trial has: trials of a kind have the same notes."""
        if text not in self._shown_notes:
            self._shown_notes.add(text)
            self._echo(text)

    def follow(self, run: str) -> RunState:
        """Wait for the end of a run; UnknownRun if there is none."""
        state = follow(self._backend, run, self._on_event, self._echo, _TRIAL)
        self._placement.record(RunPaths(self._runs_folder / run))
        return state


Machines = dict[str, str | None]  # a Kubernetes node's name -> its EC2 instance, where that is known


class PlacementRecorder:
    """Records what AWS says about the machines of a finished run, or why AWS could not be asked.

    *account* and *cluster* connect to those of an environment; *echo* receives each failure once.
    """

    def __init__(
        self,
        echo: Callable[[str], None],
        account: Callable[[Environment], Aws] | None = None,
        cluster: Callable[[Environment], ClusterReader] | None = None,
    ) -> None:
        self._echo = echo
        self._account = account or _account
        self._cluster = cluster or _cluster
        self._aws: Aws | None = None
        self._reported_failures: set[str] = set()

    def record(self, paths: RunPaths) -> None:
        """Write ``nodes.json`` of a run; nothing to do for a run outside an environment."""
        environment = recorded_plan.read(paths).environment if is_file(paths.plan) else None
        started = (event.get("machines") or [] for event in reader.lines(paths.events))
        machines = {each["name"]: each.get("instance") for group in started for each in group if each.get("name")}
        if not environment or not machines:
            return
        try:
            nodes, failure = self._describe(recorded_environment(environment), machines), None
        except SpotmpiError as error:
            nodes, failure = {}, str(error)
            if failure not in self._reported_failures:
                self._reported_failures.add(failure)
                self._echo(f"cannot verify the nodes with AWS: {failure}")
        write_atomically(paths.nodes, json.dumps({"failure": failure, "nodes": nodes}, indent=1) + "\n")

    def _describe(self, environment: Environment, machines: Machines) -> dict[str, Any]:
        from spotmpi.aws.instances import instances

        self._aws = self._aws or self._account(environment)
        unknown = [name for name, instance in machines.items() if instance is None]
        # Pods on older machine types cannot read their instance id; the cluster has it.
        known = {**machines, **(self._instances_of(environment, unknown) if unknown else {})}
        described = instances(self._aws, environment.region, [each for each in known.values() if each])
        return {name: asdict(described[each]) for name, each in known.items() if each in described}

    def _instances_of(self, environment: Environment, names: Sequence[str]) -> Machines:
        from spotmpi.aws.instances import instance_id

        nodes = {node["metadata"]["name"]: node for node in self._cluster(environment).list("Node")}
        specs = {name: nodes[name].get("spec", {}) for name in names if name in nodes}
        return {name: instance_id(str(spec.get("providerID") or "")) for name, spec in specs.items()}


def _account(environment: Environment) -> Aws:
    from spotmpi.aws.account import open_account

    return open_account(environment.region)


def _cluster(environment: Environment) -> ClusterReader:
    from spotmpi.backends.kubernetes.client.view import ClusterView

    return ClusterView(environment.context)
