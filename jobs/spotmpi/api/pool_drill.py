"""Fault injection into a pool or the workers of a stream: how long one of its nodes is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from spotmpi.agent import record
from spotmpi.agent.files import is_file
from spotmpi.agent.plan import WORKERS, Member
from spotmpi.backends.base import Backend
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec import job
from spotmpi.spec.source import load_spec

_MEMBERSHIP = (record.JOINED, record.LEFT, record.STARTED, record.RESTARTED)


class Fault(NamedTuple):
    """A fault of a member: ``evict``, ``delete`` or ``kill``."""

    member: Member
    how: str

    def __str__(self) -> str:
        return f"{self.how} of {self.member}"


@dataclass(frozen=True)
class PoolRecovery:
    """What a fault cost a pool or stream.

    Seconds count from the injection, and are None where only a worker's process was killed.
    """

    run: str
    member: Member
    how: str  # one of `drill.FAULTS`
    cause: str | None  # why the node was lost, as the pool reports it
    lost: float | None  # until node 0 had lost the worker, or the attempt of node 0 had ended
    back: float | None  # until the worker had joined again, or node 0's next attempt started

    def __str__(self) -> str:
        if self.lost is None or self.back is None:
            return f"{self.how} of {self.member}: its process was killed, and is started again in the same place"
        return f"{self.how} of {self.member}: lost after {self.lost:.1f} s, back after {self.back:.1f} s ({self.cause})"


def is_of_pool(state: RunState, member: Member) -> bool:
    """Whether *member* is one of a pool, or a worker of a stream, by the run's recorded spec."""
    path = RunPaths(Path(state.folder)).spec
    return member.role in WORKERS or (is_file(path) and load_spec(path).launcher == job.POOL)


def drill_pool(
    backend: Backend,
    state: RunState,
    fault: Fault,
    on_event: Callable[[Event], None],
    clock: Callable[[], float],
) -> PoolRecovery:
    """Inject *fault* into a member of a pool, or a worker of a stream, and follow the run until that is back.

    Raises:
        SpotmpiError: the pool is not up, or ended before.
    """
    if state.over:
        raise SpotmpiError(f"run {state.id} has ended, no fault was injected: a drill needs a run that is up")
    member = fault.member
    is_worker = member.role in WORKERS
    past = sum(event.get("event") in _MEMBERSHIP for event in reader.lines(RunPaths(Path(state.folder)).events))
    backend.inject_fault(state.id, *fault)
    injected = clock()
    if fault.how == "kill" and is_worker:
        return PoolRecovery(state.id, *fault, None, None, None)
    lost: tuple[float, str | None] | None = None
    for event in _after(past, backend.events(state.id, True)):
        on_event(event)
        if event.values.get("member") != (member.text if is_worker else None):
            continue
        if event.kind == (record.LEFT if is_worker else record.RESTARTED):
            lost = clock() - injected, event.reason
        elif lost and event.kind == (record.JOINED if is_worker else record.STARTED):
            return PoolRecovery(state.id, *fault, lost[1], lost[0], clock() - injected)
    raise SpotmpiError(f"run {state.id} ended before {member} was back; `spotmpi status {state.id}` shows why")


def _after(past: int, events: Iterable[Event]) -> Iterable[Event]:
    """The *events* after so many that tell of nodes."""

    def is_past(event: Event) -> bool:
        nonlocal past
        past -= event.kind in _MEMBERSHIP
        return past >= 0

    return dropwhile(is_past, events)
