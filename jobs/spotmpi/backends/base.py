"""The interface of every backend, and what all have in common: runs are submitted, and followed until they end.

While a run is followed Ctrl-C stops it, and a second Ctrl-C stops it without a checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from spotmpi.agent.plan import WORKER
from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, UnknownRun, input_error
from spotmpi.core.events import Event

if TYPE_CHECKING:  # only commands that read a spec import what reads one
    from spotmpi.agent.plan import Member, RunPlan
    from spotmpi.core.wording import Echo
    from spotmpi.plan.cluster_plan import ClusterPlan
    from spotmpi.plan.slurm import SlurmPlan
    from spotmpi.runs.reader import RunState
    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.validate import TargetCapabilities

Plan: TypeAlias = "RunPlan | ClusterPlan | SlurmPlan"  # distinguished by "backend"

OnEvent = Callable[[Event], None]


def require_role(run: str, role: str, known: Collection[str]) -> None:
    """Raise InputError if a run has no workers in a role."""
    if role not in known:
        option = wording.option("stage")
        raise input_error(option, role, f"run {run} has no workers for it alone: omit {option} to change all of them")


class PoolAddress(NamedTuple):
    """Where a driver on this machine reaches a pool's scheduler, and the folder with its TLS files."""

    url: str
    tls: Path


class Backend(Protocol):
    """A target for runs: this machine, a namespace of a cluster, or Slurm."""

    def inspect(self, spec: JobSpec) -> TargetCapabilities:
        """The capabilities of the target that `spotmpi.spec.validate` checks; changes nothing."""
        ...

    def plan(self, spec: JobSpec, run: str, echo: Echo) -> Plan:
        """The plan that `submit` carries out for a valid spec, unchanged but for ids, keys and times; starts nothing.

        *echo* gets a message with what takes time or cannot be looked up.
        """
        ...

    def submit(self, spec: JobSpec, plan: Plan, echo: Echo) -> None:
        """Start the run that *plan* describes, or resume it where its folder exists; returns once it is submitted.

        Raises:
            RunInUse: the run has not ended.
            SpotmpiError: it could not be started; nothing is left running.
        """
        ...

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events of a run in order, from its submission; with *follow* until it ends."""
        ...

    def state(self, run: str) -> RunState:
        """The current state of the run; UnknownRun where there is none."""
        ...

    def list(self) -> list[RunState]:
        """All runs of this target, oldest first."""
        ...

    def require_fault(self, run: str, member: Member, fault: str) -> None:
        """Raise SpotmpiError, as `inject_fault` does, without such a fault or member; does nothing else."""
        ...

    def inject_fault(self, run: str, member: Member, fault: str) -> None:
        """Inject a fault into a member of a running run: ``evict``, ``delete`` or ``kill``.

        Raises:
            SpotmpiError: it does not run, or this backend has no such fault.
        """
        ...

    def shell(self, run: str, member: Member) -> Sequence[str]:
        """The command that opens a shell on the machine of a member of the run."""
        ...

    def pull(self, run: str, echo: Echo, part: str | None = None) -> Path:
        """Copy the run's folder, or one *part* of it, to this machine; returns the folder on this machine.

        Raises:
            SpotmpiError: the folder cannot be reached.
        """
        ...

    def pool_address(self, run: str) -> AbstractContextManager[PoolAddress]:
        """Wait until the scheduler of a pool listens; its address while in the context.

        Raises:
            InputError: the run is not a pool.
            SpotmpiError: it ended before.
        """
        ...

    def forward_port(self, run: str, port: int) -> AbstractContextManager[int]:
        """A port of 127.0.0.1 on this machine that leads to *port* of 127.0.0.1 on node 0, while in the context."""
        ...

    def resize(self, run: str, workers: int, role: str = WORKER) -> None:
        """Request that a pool or stream has that many workers of a role; they come and go some time after this returns.

        Raises:
            InputError: the run has no such workers.
        """
        ...

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Ask a run to end after a checkpoint, or *now* without one; it ends some time after this returns."""
        ...


class Messages(NamedTuple):
    """The messages on Ctrl-C, on a further one, and what to do if the events of the run end before it does."""

    stopping: str
    killing: str
    remedy: str


RUN = Messages(
    "stopping after a checkpoint; Ctrl-C again kills", "killing the run", "follow it again: spotmpi logs -f {run}"
)


def submit(backend: Backend, spec: JobSpec, plan: Plan, echo: Echo) -> None:
    """Start the run that *plan* describes; Ctrl-C meanwhile kills what was started."""
    try:
        backend.submit(spec, plan, echo)
    except KeyboardInterrupt:
        with contextlib.suppress(UnknownRun):
            backend.stop(plan["run"], "Ctrl-C", True)
        raise


def follow(backend: Backend, run: str, on_event: OnEvent, echo: Echo, messages: Messages = RUN) -> RunState:
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
    with _interrupts(on_interrupt):
        for event in events:
            on_event(event)
            last = event
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
