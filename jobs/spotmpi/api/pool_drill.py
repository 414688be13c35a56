"""Fault injection into a pool: how long one of its nodes is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from spotmpi.agent import record
from spotmpi.backends.base import Backend
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec import job

_MEMBERSHIP = (record.JOINED, record.LEFT, record.STARTED, record.RESTARTED)


@dataclass(frozen=True)
class PoolRecovery:
    """What a fault cost a pool; seconds count from the injection, None where only a worker's process was killed."""

    run: str
    node: int
    how: str  # one of `drill.FAULTS`
    cause: str | None  # why the node was lost, as the pool reports it
    lost: float | None  # until node 0 had lost the worker, or the attempt of node 0 had ended
    back: float | None  # until the worker had joined again, or node 0's next attempt started

    def __str__(self) -> str:
        name = f"worker {self.node - 1}" if self.node else "node 0"
        if self.lost is None or self.back is None:
            return f"{self.how} of {name}: its process was killed, and is started again in the same place"
        return f"{self.how} of {name}: lost after {self.lost:.1f} s, back after {self.back:.1f} s ({self.cause})"


def is_pool_node(state: RunState, node: int) -> bool:
    """Whether *node* is one of a pool, or a worker of a stream, by the run's recorded spec."""
    path = RunPaths(Path(state.folder)).spec
    if not path.is_file():
        return False
    spec = job.load(path)
    return spec.launcher == job.POOL or (spec.stream is not None and node > 0)


def drill_pool(
    backend: Backend,
    state: RunState,
    node: int,
    fault: str,
    watch: Callable[[Event], None],
    clock: Callable[[], float],
) -> PoolRecovery:
    """Inject *fault* into *node* of a pool that is up, and follow it until that node is back.

    Raises:
        SpotmpiError: the pool is not up, or ended before.
    """
    if state.over:
        raise SpotmpiError(f"run {state.id} has ended, no fault was injected: a drill needs a pool that is up")
    past = sum(event.get("event") in _MEMBERSHIP for event in reader.lines(RunPaths(Path(state.folder)).events))
    backend.inject_fault(state.id, node, fault)
    injected = clock()
    if fault == "kill" and node:
        return PoolRecovery(state.id, node, fault, None, None, None)
    lost: tuple[float, str | None] | None = None
    for event in _after(past, backend.events(state.id, True)):
        watch(event)
        if event.kind == (record.LEFT if node else record.RESTARTED) and _is_about(event, node):
            lost = clock() - injected, event.reason
        elif lost and event.kind == (record.JOINED if node else record.STARTED) and _is_about(event, node):
            return PoolRecovery(state.id, node, fault, lost[1], lost[0], clock() - injected)
    raise SpotmpiError(f"run {state.id} ended before node {node} was back; `spotmpi status {state.id}` shows why")


def _is_about(event: Event, node: int) -> bool:
    return event.values.get("worker") == (node - 1 if node else None)


def _after(past: int, events: Iterable[Event]) -> Iterable[Event]:
    """The *events* after so many that tell of nodes."""

    def is_past(event: Event) -> bool:
        nonlocal past
        past -= event.kind in _MEMBERSHIP
        return past >= 0

    return dropwhile(is_past, events)
