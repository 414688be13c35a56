"""Fault injection into a pool or the workers of a stream: how long one of its nodes is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from spotmpi.agent import record
from spotmpi.backends.base import Backend
from spotmpi.core import file_status
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec import job
from spotmpi.spec.job import JobSpec

_MEMBERSHIP = (record.JOINED, record.LEFT, record.STARTED, record.RESTARTED)


@dataclass(frozen=True)
class PoolRecovery:
    """What a fault cost a pool or stream.

    Seconds count from the injection, and are None where only a worker's process was killed.
    """

    run: str
    node: int
    worker: int | None  # its number; None for node 0 of a pool
    how: str  # one of `drill.FAULTS`
    cause: str | None  # why the node was lost, as the pool reports it
    lost: float | None  # until node 0 had lost the worker, or the attempt of node 0 had ended
    back: float | None  # until the worker had joined again, or node 0's next attempt started

    def __str__(self) -> str:
        name = "node 0" if self.worker is None else f"worker {self.worker}"
        if self.lost is None or self.back is None:
            return f"{self.how} of {name}: its process was killed, and is started again in the same place"
        return f"{self.how} of {name}: lost after {self.lost:.1f} s, back after {self.back:.1f} s ({self.cause})"


def is_pool_node(state: RunState, node: int) -> bool:
    """Whether *node* is one of a pool, or a worker of a stream, by the run's recorded spec."""
    spec = _spec(state)
    return spec is not None and (spec.launcher == job.POOL or _worker(spec, node) is not None)


def _spec(state: RunState) -> JobSpec | None:
    path = RunPaths(Path(state.folder)).spec
    return job.load(path) if file_status.is_file(path) else None


def _worker(spec: JobSpec, node: int) -> int | None:
    """The number of the worker that is *node*; None for a node of the gang."""
    return node - spec.nodes if spec.workers and node >= spec.nodes else None


def drill_pool(
    backend: Backend,
    state: RunState,
    node: int,
    fault: str,
    on_event: Callable[[Event], None],
    clock: Callable[[], float],
) -> PoolRecovery:
    """Inject *fault* into *node* of a pool, or a worker of a stream, and follow the run until that node is back.

    Raises:
        SpotmpiError: the pool is not up, or ended before.
    """
    if state.over:
        raise SpotmpiError(f"run {state.id} has ended, no fault was injected: a drill needs a run that is up")
    spec = _spec(state)
    worker = _worker(spec, node) if spec else None
    past = sum(event.get("event") in _MEMBERSHIP for event in reader.lines(RunPaths(Path(state.folder)).events))
    backend.inject_fault(state.id, node, fault)
    injected = clock()
    if fault == "kill" and worker is not None:
        return PoolRecovery(state.id, node, worker, fault, None, None, None)
    lost: tuple[float, str | None] | None = None
    for event in _after(past, backend.events(state.id, True)):
        on_event(event)
        if event.values.get("worker") != worker:
            continue
        if event.kind == (record.RESTARTED if worker is None else record.LEFT):
            lost = clock() - injected, event.reason
        elif lost and event.kind == (record.STARTED if worker is None else record.JOINED):
            return PoolRecovery(state.id, node, worker, fault, lost[1], lost[0], clock() - injected)
    raise SpotmpiError(f"run {state.id} ended before node {node} was back; `spotmpi status {state.id}` shows why")


def _after(past: int, events: Iterable[Event]) -> Iterable[Event]:
    """The *events* after so many that tell of nodes."""

    def is_past(event: Event) -> bool:
        nonlocal past
        past -= event.kind in _MEMBERSHIP
        return past >= 0

    return dropwhile(is_past, events)
