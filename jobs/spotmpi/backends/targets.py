"""The target that a user names with --on, its backend, and how a run there is submitted, and followed until it ends.

While a run is followed Ctrl-C stops it, and a second Ctrl-C stops it without a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from spotmpi.agent.files import is_folder
from spotmpi.backends.base import Backend, Plan
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError, SpotmpiError, UnknownRun, input_error
from spotmpi.core.events import Event
from spotmpi.core.names import KUBERNETES, LOCAL, SLURM
from spotmpi.core.termination import Terminated, raised_when_terminated
from spotmpi.runs import reader, recorded_plan

if TYPE_CHECKING:
    from spotmpi.backends.local.backend import LocalBackend
    from spotmpi.core.environment import Environment
    from spotmpi.core.wording import Echo
    from spotmpi.runs.reader import RunState
    from spotmpi.spec.job import JobSpec


class Target(NamedTuple):
    """Where runs happen, and the folder in which this machine keeps their records.

    ``on`` is ``local``, ``kubernetes`` or ``kubernetes/NAMESPACE`` (the kubeconfig's current context), ``slurm`` or
    ``slurm/PARTITION`` (by the commands of this machine), ``slurm@HOST`` or ``slurm@HOST/PARTITION`` (by ssh), the name
    of a Pulumi stack, or a file of its outputs. By default ``SPOTMPI_ON``, else local.
    """

    on: str | None = None
    runs_folder: Path | None = None

    @property
    def folder(self) -> Path:
        """The absolute path of the runs folder; InputError where that is no folder, or none that this user may read."""
        folder = names.absolute(self.runs_folder or names.default_runs_folder())
        try:
            may_read = not is_folder(folder) or os.access(folder, os.X_OK)
        except PermissionError:
            may_read = False
        if not may_read:
            remedy = f"{names.user()} may not read it: name another folder, here or in SPOTMPI_RUNS"
            raise input_error(wording.option("runs"), str(folder), remedy)
        if os.path.lexists(folder) and not is_folder(folder):
            what = "is a link to nothing: mount its disk, or " if folder.is_symlink() else "is not a folder: "
            raise input_error(wording.option("runs"), str(folder), f"{what}name another folder")
        return folder

    @property
    def name(self) -> str:
        """What --on names, with the default filled in."""
        return self.on or os.environ.get("SPOTMPI_ON") or LOCAL

    @property
    def is_local(self) -> bool:
        """Whether it is this machine."""
        return self.name == LOCAL

    @property
    def is_slurm(self) -> bool:
        """Whether it is a Slurm cluster."""
        return self.name.partition("/")[0].partition("@")[0] == SLURM

    @property
    def has_pods(self) -> bool:
        """Whether its runs are pods: it is a Kubernetes cluster or an environment."""
        return not self.is_local and not self.is_slurm


TargetLike = Target | str | None  # a str is a value of --on


def target_of(on: TargetLike) -> Target:
    """The `Target` that *on* stands for; by default SPOTMPI_ON, else this machine.

    Raises:
        InputError: it is neither a name nor a target.
    """
    if isinstance(on, Target):
        return on
    if on is not None and not isinstance(on, str):
        raise input_error("on", on, 'give the name of a place, such as "local", "kubernetes" or that of a stack')
    return Target(on)


def backend(on: TargetLike, context: str | None = None, namespace: str | None = None) -> Backend:
    """The backend for *on*; *context* and *namespace* are what a spec asks of a cluster.

    Raises:
        InputError: no such target.
    """
    target = target_of(on)
    _refuse_empty_parts(target.name)
    if local := local_backend(target):
        return local
    if target.is_slurm:
        from spotmpi.backends.slurm.backend import SlurmBackend

        login, _, partition = target.name.partition("/")
        return SlurmBackend(target.folder, login.partition("@")[2] or None, partition or None)
    # Only runs on a cluster pay for the import of a Kubernetes client.
    from spotmpi.backends.kubernetes.backend import KubernetesBackend

    kind, _, own_namespace = target.name.partition("/")
    if kind == KUBERNETES:
        return KubernetesBackend(target.folder, context, own_namespace or namespace)
    environment = environment_of(target)
    assert environment is not None
    return KubernetesBackend(target.folder, context or environment.context, namespace, environment)


def _refuse_empty_parts(name: str) -> None:
    """InputError for ``slurm@`` and the like, as a variable that is not set leaves it: it would be another target."""
    for separator, part in (("@", "login node"), ("/", "partition" if name.startswith(SLURM) else "namespace")):
        if name.startswith((SLURM, KUBERNETES)) and re.search(rf"{separator}(?:/|$)", name):
            raise input_error(wording.option("on"), name, f"name the {part} after {separator}, or omit {separator}")


def local_backend(on: TargetLike) -> LocalBackend | None:
    """The backend of this machine, if *on* is it, which is known without a spec."""
    target = target_of(on)
    if not target.is_local:
        return None
    from spotmpi.backends.local.backend import LocalBackend

    return LocalBackend(target.folder)


def backend_of(run: str, on: TargetLike) -> Backend:
    """The backend that knows *run*: the named one, else the one that its record in the runs folder names.

    ``kubernetes`` names no namespace: the namespace of the record is used, if it has one.
    """
    target = target_of(on)
    try:
        is_open = target.on in (None, KUBERNETES, SLURM)
        cluster = recorded_plan.cluster_of(reader.find(run, target.folder)) if is_open else None
    except UnknownRun:
        cluster = None
    if cluster is None:
        return backend(target)
    if isinstance(cluster, recorded_plan.SlurmLogin):
        return backend(Target(f"{SLURM}@{cluster.host}" if cluster.host else SLURM, target.runs_folder))
    return backend(Target(f"{KUBERNETES}/{cluster.namespace}", target.runs_folder), cluster.context)


def backend_to_continue(run: str, on: TargetLike) -> Backend:
    """The backend on which *run* goes on: as `backend_of`, in the environment that its own plan has."""
    target = target_of(on)
    if target.on is None:
        from spotmpi.core import environment
        from spotmpi.runs import ownership

        paths = reader.find(run, target.folder)
        plan = recorded_plan.read(paths) if ownership.is_own(paths) else None  # another user's may name any
        if plan and plan.environment is not None:
            from spotmpi.backends.kubernetes.backend import KubernetesBackend

            return KubernetesBackend(
                target.folder, plan.context, plan.namespace, environment.recorded(plan.environment)
            )
    return backend_of(run, on)


def environment_of(on: TargetLike) -> Environment | None:
    """The environment that a stack's name or a file of its outputs stands for; None for other places."""
    from spotmpi.core import environment

    name = target_of(on).name
    if not target_of(on).has_pods or name.partition("/")[0] == KUBERNETES:
        return None
    if name.endswith(".json") or name.startswith((".", "/")):  # names of stacks begin with neither
        return environment.load(Path(name))
    try:
        return environment.of_stack(name)
    except InputError:  # there is such a stack
        raise
    except SpotmpiError as error:
        import difflib

        similar = difflib.get_close_matches(name.partition("/")[0].partition("@")[0], (LOCAL, KUBERNETES, SLURM), 1)
        if not similar:
            raise
        raise SpotmpiError(f"{error}; or did you mean {similar[0]}?") from error


class Messages(NamedTuple):
    """The messages on Ctrl-C, on a further one, and what to do if the events of the run end before it does."""

    stopping: str
    killing: str
    remedy: str


RUN = Messages(
    "stopping after a checkpoint; Ctrl-C again kills", "killing the run", "follow it again: spotmpi logs -f {run}"
)


def new_run_id(spec: JobSpec) -> str:
    """An id for a run of *spec* that is submitted now."""
    import secrets

    return names.run_id(spec.title, datetime.now(), secrets.randbelow(1 << 20))


def submit(backend: Backend, spec: JobSpec, plan: Plan, echo: Echo) -> None:
    """Start the run that *plan* describes; Ctrl-C meanwhile kills what was started."""
    try:
        backend.submit(spec, plan, echo)
    except KeyboardInterrupt:
        with contextlib.suppress(UnknownRun):
            backend.stop(plan["run"], "Ctrl-C", True)
        raise


def follow(
    backend: Backend, run: str, on_event: Callable[[Event], None], echo: Echo, messages: Messages = RUN
) -> RunState:
    """Pass every event of *run* to *on_event* until it ends; its final state.

    Raises:
        UnknownRun: there is no such run.
        SpotmpiError: the events ended before the run did.
    """

    def on_interrupt(again: bool) -> None:
        echo(messages.killing if again else messages.stopping)
        try:
            backend.stop(run, "Ctrl-C", again)
        except SpotmpiError as error:
            echo(f"the run continues; Ctrl-C tries again to stop it: {error}")

    last = None
    events = backend.events(run, True)
    try:
        with _interrupts(on_interrupt), raised_when_terminated():
            for event in events:
                on_event(event)
                last = event
    except Terminated as end:
        with contextlib.suppress(OSError):  # of a terminal that is closed
            echo(f"{end.signal} ends only this command, and run {run} continues: `spotmpi stop {run}` stops it")
        raise
    if last is None or not last.terminal:
        raise SpotmpiError(f"the events of run {run} ended before the run did; {messages.remedy.format(run=run)}")
    return backend.state(run)


@contextmanager
def _interrupts(stop: Callable[[bool], None]) -> Iterator[None]:
    """In the context, the first Ctrl-C calls stop(False), every further one stop(True).

    *stop* runs in its own thread, since a signal may arrive in the middle of output. Outside the main thread, which
    alone gets signals, nothing changes.
    """
    pressed = 0
    calls: list[threading.Thread] = []

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        calls.append(threading.Thread(target=stop, args=(pressed > 1,)))
        calls[-1].start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for call in calls:
            call.join()
