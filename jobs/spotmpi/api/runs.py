"""Runs: each command of `spotmpi` for them as a function."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent import record
from spotmpi.agent.files import is_file
from spotmpi.agent.plan import NODE, STANDBY, Member, read_member
from spotmpi.backends import targets
from spotmpi.backends.base import Backend, Plan, no_member
from spotmpi.backends.targets import TargetLike, follow, new_run_id, submit
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError, Problem, SpotmpiError, UnknownRun, input_error
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, silent
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.reader import RunState

if TYPE_CHECKING:
    from spotmpi.api.drill import PoolRecovery, Recovery
    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.source import Source, WrongKeys


def init(path: Path | str = "job.toml", script: str | None = None) -> Path:
    """Write a commented spec to start from to *path*, for *script* or an example; InputError where *path* exists."""
    from spotmpi.spec import template

    template.write(Path(path), script)
    return Path(path)


def plan_run(
    source: Source, overrides: Iterable[str] = (), on: TargetLike = None, echo: Echo = silent
) -> Mapping[str, Any]:
    """What `run` would start, as plain JSON values; nothing is started or written.

    *echo* gets a message with what takes time, or what the target cannot be asked.
    """
    return _preview(prepare(source, overrides, on, echo)[2], echo)


def problems(source: Source, overrides: Iterable[str] = (), on: TargetLike = None) -> list[Problem]:
    """All problems of a job at its target; an empty list if it can run."""
    try:
        _validate(source, overrides, on)
    except InputError as error:
        return list(error.problems)
    return []


def save_spec(path: Path, source: Source, overrides: Iterable[str] = (), on: TargetLike = None) -> JobSpec:
    """Write the spec that `run` would run, and return it; InputError if it has problems or the file exists."""
    from spotmpi.spec.source import write_spec

    spec = _validate(source, overrides, on)[1]
    write_spec(spec, path)
    return spec


def run(
    source: Source,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    detach: bool = False,
    on_event: Callable[[Event], None] | None = None,
    echo: Echo | None = None,
) -> RunState:
    """Run a job to its end, or with *detach* only submit it; the state of the run.

    *source* is a spec, its file or values, or a command: ``run(["echo", "hi"], ["nodes=2"], on="lab")``. *on_event*
    gets every event and *echo* every message; by default they are printed as `spotmpi run` does. Ctrl-C stops the run
    after a checkpoint, a second one at once; the state then is ``stopped``.

    Raises:
        InputError: all problems of the spec.
        SpotmpiError: it could not be started.
    """
    local = targets.local_backend(on)
    with local.agent_ahead() if local else contextlib.nullcontext():
        backend, spec = _validate(source, overrides, on, local)

        def start(on_event: Callable[[Event], None], echo: Echo) -> RunState:
            planned = _plan_new(backend, spec, echo, detach)
            _send_entries(*planned[1:], echo)
            return _submit(*planned, detach, on_event, echo)

        if _has_inputs(spec):
            return _show(start, detach, on_event, echo)
    spec = _with_inputs(spec, on, build=True)  # which may take long: without an agent
    return run(spec, (), on, detach, on_event, echo)


def run_recorded(spec: JobSpec, on: TargetLike) -> RunState:
    """Run the recorded *spec* of another user's run on a cluster once more.

    The entries of a store that it names are on the run volume since that user submitted it: none are copied from here.
    """
    backend, spec = _validate(spec, (), on)

    def start(on_event: Callable[[Event], None], echo: Echo) -> RunState:
        return _submit(*_plan_new(backend, spec, echo), False, on_event, echo)

    return _show(start, False, None, None)


def resume(
    run: str,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    detach: bool = False,
    on_event: Callable[[Event], None] | None = None,
    echo: Echo | None = None,
) -> RunState:
    """Continue a run that has ended, from its newest complete checkpoint, with *overrides* applied to its spec."""
    from spotmpi.runs import ownership

    paths, backend = reader.find(run, targets.target_of(on).folder), targets.backend_to_continue(run, on)
    state = backend.state(paths.id)
    if state.state == record.SUCCEEDED:
        raise input_error(wording.option("resume"), paths.id, "has succeeded; there is nothing to continue")
    if not state.over:
        raise input_error(wording.option("resume"), paths.id, f"has not ended; `spotmpi logs -f {paths.id}` follows it")
    spec = _continued_spec(backend, paths, overrides)

    def start(on_event: Callable[[Event], None], echo: Echo) -> RunState:
        plan = backend.plan(spec, paths.id, echo)
        if plan["backend"] == names.LOCAL:
            before, now = recorded_plan.work(paths).get("python"), plan["work"].get("python")
            if before and now and before != now:
                echo(f"the run has used Python {before} and continues with {now}, which may change its result")
        if ownership.is_own(paths):  # the entries that another's spec names are on the run volume since his submission
            _send_entries(spec, plan, echo)
        return _submit(backend, spec, plan, detach, _from_next_submission(paths, on_event), echo)

    return _show(start, detach, on_event, echo)


def plan_resume(
    run: str, overrides: Iterable[str] = (), on: TargetLike = None, echo: Echo = silent
) -> Mapping[str, Any]:
    """What `resume` would start, as plain JSON values; nothing is started or written."""
    paths, backend = reader.find(run, targets.target_of(on).folder), targets.backend_to_continue(run, on)
    return _preview(backend.plan(_continued_spec(backend, paths, overrides), paths.id, echo), echo)


def _preview(plan: Plan, echo: Echo) -> Mapping[str, Any]:
    """The plan; that of this machine with the commands that its agent makes of it.

    *echo* gets why a cluster would not take it, or could not be asked.
    """
    if plan["backend"] == names.KUBERNETES and plan["unchecked"]:
        echo(f"{plan['unchecked']}; this plan assumes that you may create Secrets, and that egress is not denied")
    if plan["backend"] != names.LOCAL:
        return plan
    from spotmpi.plan.local import preview

    return preview(plan, sys.executable, os.geteuid() == 0)


def list_runs(on: TargetLike = None, mine: bool = False, echo: Echo = silent) -> list[RunState]:
    """All recorded runs, oldest first; with *mine* only those that this user submitted."""
    states = [_keep_results(state, echo, on) for state in targets.backend(on).list()]
    return [state for state in states if state.owner in (None, names.user())] if mine else states


def status(run: str, on: TargetLike = None, echo: Echo = silent) -> RunState:
    """The current state of a run; its id may be shortened."""
    return _keep_results(_with_price(targets.backend_of(run, on).state(run)), echo, on)


def logs(run: str, follow: bool = False, on: TargetLike = None) -> Iterator[Event]:
    """The events of a run from its submission, lines included; with *follow* until it ends."""
    return targets.backend_of(run, on).events(run, follow)


def member(node: int | str) -> Member:
    """The member of a run that a user has named: by the number of a node, or by its role and index."""
    try:
        return read_member(str(node))
    except ValueError:
        remedy = "give the number of a node, such as 1, or a role with a number, such as worker/0 or standby/0"
        raise input_error(wording.option("node"), node, remedy) from None


def find_member(state: RunState, node: int | str) -> Member:
    """The `member` of a run that a user has named; InputError with those that it has, where that is none of them."""
    chosen, paths = member(node), RunPaths(Path(state.folder))
    if not is_file(paths.spec) or any(paths.logs.glob(f"*/{chosen.file}.log")):  # as a worker before a resize
        return chosen
    from spotmpi.spec.source import load_spec

    try:
        spec = load_spec(paths.spec)
    except SpotmpiError:  # as of another version
        return chosen
    counts = {NODE: spec.nodes, **{each.role: each.count for each in spec.workers}, STANDBY: spec.standby}
    counts |= {role: now["wanted"] for role, now in state.workers.items()}
    if chosen.number >= counts.get(chosen.role, 0):
        raise no_member(state.id, chosen, counts)
    return chosen


def drill(
    run: str,
    node: int | str = 0,
    fault: str = "evict",
    on: TargetLike = None,
    on_event: Callable[[Event], None] = lambda event: None,
    echo: Echo = silent,
) -> Recovery | PoolRecovery:
    """Inject a fault (evict, delete, kill) into a member of a training run or a pool; what recovery cost.

    *node* is the number of a node, or another member, such as ``worker/0``. *echo* gets what it waits for.
    """
    from spotmpi.api.drill import Fault, drill

    backend = targets.backend_of(run, on)
    state = backend.state(run)
    return drill(backend, state, Fault(find_member(state, node), fault), on_event, echo)


def shell_command(run: str, node: int | str = 0, on: TargetLike = None) -> Sequence[str]:
    """The command that opens a shell in a node of the run, or in another member, such as ``worker/0``."""
    backend = targets.backend_of(run, on)
    state = backend.state(run)
    return backend.shell(state.id, find_member(state, node))


def pull(run: str, on: TargetLike = None, echo: Echo = silent, part: str | None = None) -> Path:
    """Copy a run's folder (checkpoints, logs, TensorBoard events), or one *part* of it, to this machine; its path here.

    If its JobSet is gone and this machine has no record of it, *run* has to be its full id.
    """
    backend = targets.backend_of(run, on)
    with contextlib.suppress(UnknownRun):
        run = backend.state(run).id
    return backend.pull(run, echo, part)


def clean(older: float | str, delete: bool = False, on: TargetLike = None, echo: Echo = silent) -> list[RunState]:
    """The runs that ended longer ago than *older*, seconds or ``"30d"``; with *delete* their folders are deleted.

    The copy of a cluster's run without a recorded end is kept unless its cluster reports that the run has ended. *echo*
    gets a message for each run that is kept since its cluster does not answer, or since it has been resumed.
    """
    from spotmpi.api.cleanup import delete_records, old_runs
    from spotmpi.spec.job import read_duration

    runs = old_runs(targets.target_of(on).folder, time.time() - read_duration(wording.option("older"), older), echo)
    return delete_records(runs, echo) if delete else [each.state for each in runs]


def prepare(source: Source, overrides: Iterable[str], on: TargetLike, echo: Echo) -> tuple[Backend, JobSpec, Plan]:
    """The backend, the valid spec and the plan of a new run; InputError with all problems at once."""
    backend, spec = _validate(source, overrides, on)
    while not _has_inputs(spec):
        backend, spec = _validate(_with_inputs(spec, on, build=False), (), on)
    return _plan_new(backend, spec, echo)


def _plan_new(backend: Backend, spec: JobSpec, echo: Echo, detach: bool = False) -> tuple[Backend, JobSpec, Plan]:
    """The backend, the spec and the plan of a new run of a valid *spec*.

    A pool that is to be detached waits for drivers without a limit, unless its spec has one.
    """
    if detach and spec.pool and "driver" not in spec.limits.model_fields_set:
        spec = spec.model_copy(update={"limits": spec.limits.model_copy(update={"driver": "none"})})
    if note := _lone_ranks(spec):
        echo(note)
    return backend, spec, backend.plan(spec, new_run_id(spec), echo)


def _lone_ranks(spec: JobSpec) -> str | None:
    """That the processes of a command do not know of each other, where its script uses MPI and nothing starts it so."""
    if spec.launcher != "none" or spec.nodes == 1 or spec.run_on != "all":
        return None
    from spotmpi.agent.launchers import LAUNCHERS  # few runs are such
    from spotmpi.runs.fingerprint import is_interpreter

    first, *_ = spec.command or [""]  # another command, such as an mpirun of its own, may start the script in any way
    script = next((part for part in spec.command or () if part.endswith(".py")), None)
    if script != first and not is_interpreter(first):
        return None
    mpirun = next(name for name, each in LAUNCHERS.items() if each.mpi)
    try:
        text = Path(spec.code or "", script).read_text(encoding="utf-8", errors="replace") if script else ""
    except OSError:
        return None
    if not re.search(LAUNCHERS[mpirun].script or "", text, re.MULTILINE):
        return None
    remedy = f"{wording.option('launcher', mpirun)} starts them as ranks of one job"
    return f"{script} uses MPI, and without {mpirun} each of its {spec.nodes} processes is rank 0 of 1; {remedy}"


def _validate(
    source: Source, overrides: Iterable[str], on: TargetLike, backend: Backend | None = None
) -> tuple[Backend, JobSpec]:
    """The backend, where *on* alone does not give it, and the valid spec of a new run; InputError with all problems."""
    from spotmpi.spec.source import WrongKeys, read_spec
    from spotmpi.spec.validate import require_valid

    try:
        spec = read_spec(source, overrides)
    except WrongKeys as error:
        raise InputError([*error.problems, *_further_problems(error, on)]) from None
    backend = backend or targets.backend(on, spec.kubernetes.context, spec.kubernetes.namespace)
    checked = spec
    if spec.dataset:
        from spotmpi.api.dataset_specs import to_check

        checked = to_check(spec)
    if targets.target_of(on).is_local and (spec.data or spec.init):
        from spotmpi.api import run_entries

        spec, checked = map(run_entries.with_copies, (spec, checked))
    capabilities = backend.inspect(checked)
    if capabilities.persistent is not None:
        from spotmpi.api.volume_entries import on_volume

        spec, checked = (on_volume(each, capabilities.persistent) for each in (spec, checked))
    require_valid(checked, capabilities)
    return backend, spec


def _has_inputs(spec: JobSpec) -> bool:
    """Whether what a run reads is there: its data set is built, and entries behind a URL are copied to this machine."""
    if spec.dataset or not (spec.data or spec.init):
        return spec.dataset is None
    from spotmpi.api import run_entries

    return not run_entries.missing(spec)


def _with_inputs(spec: JobSpec, on: TargetLike, build: bool) -> JobSpec:
    """*spec* with the place of its data set, and copies of what is behind a URL; with *build* these are made.

    Raises:
        SpotmpiError: it fails, or there is something to make without *build*.
    """
    from spotmpi.api import run_entries
    from spotmpi.api.dataset_specs import with_dataset

    spec = with_dataset(spec, on, build)
    absent = run_entries.missing(spec)
    if absent and not build:
        key, place = next(iter(absent.items()))
        remedy = "`spotmpi run` copies it"
        raise SpotmpiError(f"{key} is behind a URL and not in {place} yet, which the plan needs: {remedy}")
    run_entries.fetch(spec, wording.print_message)
    return spec


def _continued_spec(backend: Backend, paths: RunPaths, overrides: Iterable[str]) -> JobSpec:
    """The recorded spec with *overrides*, to continue its run; InputError with all problems at once."""
    from spotmpi.runs import ownership
    from spotmpi.spec.validate import require_valid

    spec = ownership.load_for_resume(paths, overrides)
    if not _has_inputs(spec):  # the cache was cleared
        spec = _with_inputs(spec, None, build=True)
    require_valid(spec, backend.inspect(spec))
    return spec


def _further_problems(error: WrongKeys, on: TargetLike) -> Sequence[Problem]:
    """The problems of the rest of a spec with wrong keys, as far as its target can be inspected without them."""
    from spotmpi.spec.validate import validate

    if "kubernetes" in error.wrong:
        return []
    cluster = error.rest.kubernetes
    try:
        backend = targets.backend(on, cluster.context, cluster.namespace)
        return validate(error.rest, backend.inspect(error.rest), error.wrong)
    except InputError as further:
        return further.problems
    except SpotmpiError:
        return []


def _from_next_submission(paths: RunPaths, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """*on_event* for the events after the next submission of the run only."""
    left = len(reader.submissions(paths))

    def show(event: Event) -> None:
        nonlocal left
        left -= event.kind == record.SUBMITTED
        if left < 0:
            on_event(event)

    return show


def _show(
    start: Callable[[Callable[[Event], None], Echo], RunState],
    detach: bool,
    on_event: Callable[[Event], None] | None,
    echo: Echo | None,
) -> RunState:
    """The state after *start*, whose events and messages are printed where *on_event* or *echo* is missing."""
    if on_event and echo:
        return start(on_event, echo)
    from spotmpi.api.view import make_view, result_text, stream_texts

    with make_view(quiet=detach) as view:
        state = start(on_event or view.show, echo or view.echo)
    if on_event is None and not detach:
        view.echo(result_text(state))
        for text in stream_texts(state):
            view.echo(f"stream: {text}")
    return state


def _send_entries(spec: JobSpec, plan: Plan, echo: Echo) -> None:
    """Copy the entries of this machine's store that pods read to the run volume."""
    if plan["backend"] == names.KUBERNETES:
        from spotmpi.api import volume_entries

        volume_entries.send(spec, plan, echo)


def _submit(
    backend: Backend, spec: JobSpec, plan: Plan, detach: bool, on_event: Callable[[Event], None], echo: Echo
) -> RunState:
    for note in plan["notes"]:
        echo(note)
    submit(backend, spec, plan, echo)
    run: str = plan["run"]
    state = backend.state(run)
    if spec.keep:
        from spotmpi.api import keep_requests  # few runs are

        keep_requests.request(Path(state.folder), spec)
    if detach:
        return state
    return _keep_results(_with_price(follow(backend, run, on_event, echo)), echo)


def _keep_results(state: RunState, echo: Echo, on: TargetLike = None) -> RunState:
    """*state*; the model of a run that has succeeded and asks for it is kept, where *state* is not read in vain."""
    if state.state == record.SUCCEEDED and is_file(RunPaths(Path(state.folder)).keep):
        from spotmpi.api import keep_requests

        keep_requests.keep_requested(state, on, echo)
    return state


def _with_price(state: RunState) -> RunState:
    """*state* with the cost in the advice on its stream, where it has one."""
    if state.stream is None:
        return state
    from spotmpi.api.prices import with_price

    return with_price(state, state.stream)
