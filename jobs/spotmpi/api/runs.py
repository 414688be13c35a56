"""The commands as functions: what `spotmpi` does, for notebooks and scripts."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spotmpi.agent import record
from spotmpi.backends import targets
from spotmpi.backends.base import Backend, Plan
from spotmpi.backends.follow import follow, interrupts
from spotmpi.backends.targets import TargetLike
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, UnknownRun, input_error
from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec import job, template
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Source, read_spec
from spotmpi.spec.validate import require_valid

if TYPE_CHECKING:
    from spotmpi.api.drill import Recovery

_STOPPED = "stopped by its user"


def init(path: Path | str = "job.toml", script: str | None = None) -> Path:
    """Write a commented spec to start from to *path*, for *script* or an example; InputError where *path* exists."""
    template.write(Path(path), script)
    return Path(path)


def plan_run(source: Source, overrides: Iterable[str] = (), on: TargetLike = None) -> Plan:
    """What `run` would start, as plain JSON values; nothing is started or written."""
    return _planned(read_spec(source, overrides), on)[1]


def run(
    source: Source,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    detach: bool = False,
    watch: Callable[[Event], None] = lambda event: None,
    say: Say = lambda text: None,
) -> RunState:
    """Run a job to its end, or with *detach* until it is under way, and give what it came to.

    *watch* sees every event; *say* hears what is worth knowing besides. Ctrl-C stops the run after a checkpoint, a
    second one at once; the state then is ``stopped``.

    Raises:
        InputError: everything that is wrong with the spec.
        SpotmpiError: it could not be started.
    """
    spec = read_spec(source, overrides)
    backend, made = _planned(spec, on)
    return _started(backend, spec, made, detach, watch, say)


def resume(
    run: str,
    overrides: Iterable[str] = (),
    on: TargetLike = None,
    detach: bool = False,
    watch: Callable[[Event], None] = lambda event: None,
    say: Say = lambda text: None,
) -> RunState:
    """Continue a run that has ended, from its newest whole checkpoint, with *overrides* applied to its spec."""
    paths, backend = reader.find(run, targets.target_of(on).folder), targets.backend_of(run, on)
    state = backend.state(paths.id)
    if state.state == record.SUCCEEDED:
        raise input_error("--resume", paths.id, "has succeeded; there is nothing left to continue")
    if not state.over:
        raise input_error("--resume", paths.id, f"is still going on; `spotmpi logs -f {paths.id}` follows it")
    spec = job.load(paths.spec, overrides)
    require_valid(spec, backend.inspect(spec))
    return _started(backend, spec, backend.plan(spec, paths.id), detach, _from_next_submission(paths, watch), say)


def plan_resume(run: str, overrides: Iterable[str] = (), on: TargetLike = None) -> Plan:
    """What `resume` would start, as plain JSON values; nothing is started or written."""
    paths, backend = reader.find(run, targets.target_of(on).folder), targets.backend_of(run, on)
    spec = job.load(paths.spec, overrides)
    require_valid(spec, backend.inspect(spec))
    return backend.plan(spec, paths.id)


def list_runs(on: TargetLike = None, mine: bool = False) -> list[RunState]:
    """All recorded runs, oldest first; with *mine* only those that this user submitted, as far as is known."""
    found = targets.backend(on).list()
    return [state for state in found if state.owner in (None, names.user())] if mine else found


def status(run: str, on: TargetLike = None) -> RunState:
    """What a run has come to so far; its id may be shortened."""
    return targets.backend_of(run, on).state(run)


def logs(run: str, follow: bool = False, on: TargetLike = None) -> Iterator[Event]:
    """The events of a run from its submission, lines included; with *follow* until it ends."""
    return targets.backend_of(run, on).events(run, follow)


def stop(run: str, now: bool = False, wait: bool = True, on: TargetLike = None) -> RunState:
    """Stop a run after a checkpoint, or *now* without one; a run that is over stays as it is."""
    backend = targets.backend_of(run, on)
    before = backend.state(run)
    if before.over:
        return before
    backend.stop(before.id, _STOPPED, now)
    try:
        while wait and not backend.state(before.id).over:
            time.sleep(0.05)
        return backend.state(before.id)
    except UnknownRun:
        return replace(before, state=record.STOPPED, reason=_STOPPED)  # one that left no record here


def drill(
    run: str,
    node: int = 0,
    fault: str = "evict",
    on: TargetLike = None,
    watch: Callable[[Event], None] = lambda event: None,
) -> Recovery:
    """Inject a fault (evict, delete, kill) into a node of a training run; what its recovery cost."""
    from spotmpi.api.drill import drill

    backend = targets.backend_of(run, on)
    return drill(backend, backend.state(run).id, node, fault, watch)


def shell_command(run: str, node: int = 0, on: TargetLike = None) -> Sequence[str]:
    """The command that opens a shell where a node of the run is."""
    backend = targets.backend_of(run, on)
    return backend.shell(backend.state(run).id, node)


def pull(run: str, on: TargetLike = None, say: Say = lambda text: None, part: str | None = None) -> Path:
    """Bring all that is kept of a run (checkpoints, logs, TensorBoard events), or one *part*, here; its folder.

    A run whose JobSet is gone, and which this machine has never seen, needs its whole id.
    """
    backend = targets.backend_of(run, on)
    with contextlib.suppress(UnknownRun):
        run = backend.state(run).id
    return backend.pull(run, say, part)


def clean(older: float, delete: bool = False, on: TargetLike = None, say: Say = lambda text: None) -> list[RunState]:
    """The runs that ended more than *older* seconds ago; with *delete* their folders are gone afterwards.

    A copy of a run on a cluster that has no end is kept, unless its cluster says that the run is over. *say* hears
    which runs are kept for want of an answer, or because another process has taken them up.
    """
    from spotmpi.api.cleanup import delete_records, old_runs

    found = old_runs(targets.target_of(on).folder, time.time() - older, say)
    return delete_records(found, say) if delete else [each.state for each in found]


def _backend_for(spec: JobSpec, on: TargetLike) -> Backend:
    return targets.backend(on, spec.kubernetes.context, spec.kubernetes.namespace)


def _planned(spec: JobSpec, on: TargetLike) -> tuple[Backend, Plan]:
    backend = _backend_for(spec, on)
    require_valid(spec, backend.inspect(spec))
    run = names.run_id(spec.title, datetime.now(), secrets.randbelow(1 << 20))
    return backend, backend.plan(spec, run)


def _from_next_submission(paths: names.RunPaths, watch: Callable[[Event], None]) -> Callable[[Event], None]:
    """*watch* without what earlier submissions of the run have shown already."""
    left = sum(event.get("event") == record.SUBMITTED for event in reader.lines(paths.events))

    def show(event: Event) -> None:
        nonlocal left
        if left < 0:
            watch(event)
        elif event.kind == record.SUBMITTED:
            left -= 1
            if left < 0:
                watch(event)

    return show


def _started(
    backend: Backend, spec: JobSpec, made: Plan, detach: bool, watch: Callable[[Event], None], say: Say
) -> RunState:
    for note in made["notes"]:
        say(note)
    run: str = made["run"]
    try:
        backend.submit(spec, made, say)
    except KeyboardInterrupt:
        with contextlib.suppress(UnknownRun):
            backend.stop(run, "Ctrl-C", True)
        raise
    if detach:
        return backend.state(run)

    def on_interrupt(now: bool) -> None:
        say("killing the run" if now else "stopping after a checkpoint; Ctrl-C again kills")
        backend.stop(run, "Ctrl-C", now)

    with interrupts(on_interrupt):
        end = follow(backend.events(run, True), watch)
    if end is None:
        raise SpotmpiError(f"lost sight of run {run}; `spotmpi logs -f {run}` follows it again")
    return backend.state(run)
