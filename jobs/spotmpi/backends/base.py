"""The verbs that every backend has. Only backends touch processes or an API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.plan.local import Plan
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import TargetCapabilities


class Backend(Protocol):
    """Where runs happen."""

    def survey(self, spec: JobSpec) -> TargetCapabilities:
        """What `spotmpi.spec.validate` has to know of this place, found out without changing it."""
        ...

    def plan(self, spec: JobSpec, run: str) -> Plan:
        """What `submit` would do for a valid spec, without doing it."""
        ...

    def submit(self, spec: JobSpec, plan: Plan, say: Say) -> None:
        """Start the run that *plan* describes, or continue it where its folder exists; returns once it is under way.

        Raises:
            RunInUse: the run is still going on.
            SpotmpiError: it could not be started; nothing is left running.
        """
        ...

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events of a run in order, from its submission; with *follow* until it ends."""
        ...

    def state(self, run: str) -> RunState:
        """What the run has come to so far; UnknownRun where there is none."""
        ...

    def list(self) -> list[RunState]:
        """All runs known here, oldest first."""
        ...

    def inject_fault(self, run: str, node: int, how: str) -> None:
        """Cause a fault at a node of a run that is going on: ``evict``, ``delete`` or ``kill``.

        Raises:
            SpotmpiError: there is nothing to strike, or not in that way here.
        """
        ...

    def shell(self, run: str, node: int) -> Sequence[str]:
        """The command that opens a shell where a node of the run is."""
        ...

    def pull(self, run: str, say: Say, part: str | None = None) -> Path:
        """Bring all that is kept of a run, or one *part* of its folder, to this machine; the folder that then holds it.

        Raises:
            SpotmpiError: it is out of reach.
        """
        ...

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Ask a run to end after a checkpoint, or *now* without one; it ends some time after this returns."""
        ...
