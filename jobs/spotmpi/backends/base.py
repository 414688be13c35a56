"""The interface of every backend."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from spotmpi.agent.plan import WORKER
from spotmpi.core import wording
from spotmpi.core.errors import InputError, SpotmpiError, input_error
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


def unrecorded(folder: Path, error: OSError) -> SpotmpiError:
    """The error for a run whose *folder* cannot be written."""
    place = wording.option("runs", "FOLDER")
    return SpotmpiError(f"cannot record the run in {folder}: {error.strerror}; use {place}")


def no_workers(run: str) -> InputError:
    """The error for a run without any workers."""
    return input_error("run", run, "has no workers; only a pool and a run with a stream have them")


def no_member(run: str, member: Member, counts: Mapping[str, int]) -> InputError:
    """The error for a *member* that a run does not have, whose *counts* are its members by role."""
    spans = [[f"{role}/{end}" for end in dict.fromkeys((0, count - 1))] for role, count in counts.items() if count]
    has = ", ".join(" to ".join(span) for span in spans)
    return input_error(wording.option("node"), member.text, f"run {run} has {has}")


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
