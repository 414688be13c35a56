"""Fault injection: cause a fault in a running run and measure its recovery, or how long a node of a pool is missing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import protocol, record
from spotmpi.agent.files import is_file
from spotmpi.agent.plan import WORKERS, Member
from spotmpi.agent.progress import REMEDY
from spotmpi.backends.base import Backend
from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, silent
from spotmpi.runs import reader
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import POOL
from spotmpi.spec.source import load_spec

FAULTS = ("evict", "delete", "kill")
_PATIENCE = 300.0  # seconds of an attempt in which a run reports its first iteration
_MEMBERSHIP = (record.JOINED, record.LEFT, record.STARTED, record.RESTARTED)


class Fault(NamedTuple):
    """A fault of a member: ``evict``, ``delete`` or ``kill``."""

    member: Member
    how: str

    def __str__(self) -> str:
        return f"{self.how} of {self.member}"


@dataclass(frozen=True)
class Recovery:
    """What a fault cost a run; seconds count from the injection, by the follower's clock."""

    run: str
    member: Member
    how: str  # one of FAULTS
    cause: str  # interrupted or failed, as the run reports it
    lost_iterations: int
    detected: float  # until the attempt had ended
    rescheduled: float  # until the next attempt started
    resumed: float  # until the next attempt's first iteration had ended, as its first report tells

    def __str__(self) -> str:
        repeated = wording.counted(self.lost_iterations, "iteration")
        return (
            f"{self.how} of {self.member}: attempt ended after {self.detected:.1f} s, next one started after "
            f"{self.rescheduled:.1f} s, first iteration after {self.resumed:.1f} s, {repeated} "
            f"repeated ({self.cause})"
        )


@dataclass(frozen=True)
class PoolRecovery:
    """What a fault cost a pool or stream.

    Seconds count from the injection, and are None where only a worker's process was killed.
    """

    run: str
    member: Member
    how: str  # one of FAULTS
    cause: str | None  # why the node was lost, as the pool reports it
    lost: float | None  # until node 0 had lost the worker, or the attempt of node 0 had ended
    back: float | None  # until the worker had joined again, or node 0's next attempt started

    def __str__(self) -> str:
        if self.lost is None or self.back is None:
            return f"{self.how} of {self.member}: its process was killed, and is started again in the same place"
        return f"{self.how} of {self.member}: lost after {self.lost:.1f} s, back after {self.back:.1f} s ({self.cause})"


class _RecoveryTimer:
    """Injects the fault at the next iteration and measures the run until the first iteration after it.

    Times are those at which events come in, by one *clock* of this machine: those that events carry are of other
    clocks, and after the fault perhaps of another machine's than before.
    """

    def __init__(self, inject: Callable[[], None], clock: Callable[[], float]) -> None:
        self._inject = inject
        self._clock = clock
        self._injected: float | None = None
        self._last = 0
        self._times: dict[str, Any] = {}

    @property
    def injected(self) -> bool:
        """Whether the fault was injected."""
        return self._injected is not None

    def update(self, event: Event) -> dict[str, Any] | None:
        """The times of the recovery once it is complete, else None."""
        iteration = event.values.get("iteration") if event.kind == record.METRIC else None
        trained = iteration is not None and event.values.get("kind") == protocol.METRIC
        if self._injected is None:
            if trained:
                self._last = int(iteration or 0)
                self._injected = self._clock()
                self._inject()
            return None
        return self._recovery(event, trained, self._clock() - self._injected)

    def _recovery(self, event: Event, trained: bool, since: float) -> dict[str, Any] | None:
        if "ended" not in self._times and trained:
            self._last = max(self._last, int(event.values["iteration"]))
        if event.kind == record.RESTARTED:
            self._times |= {"ended": since, "cause": event.reason or "no reason given"}
        elif event.kind == record.STARTED and "ended" in self._times:
            self._times.setdefault("started", since)
        elif event.kind == record.METRIC and event.values.get("kind") == protocol.RESUMED:
            self._times["from"] = int(event.values.get("iteration") or 0)
        elif trained and "started" in self._times:
            # A program need not report where it resumes.
            seconds = event.values.get("seconds") or ()
            start = int(event.values["iteration"]) - max(len(seconds), 1)
            first = max(since - sum(seconds[1:]), self._times["started"])
            return {**self._times, "first": first, "lost": max(self._last - self._times.get("from", start), 0)}
        return None


def drill(
    backend: Backend,
    before: RunState,
    fault: Fault,
    on_event: Callable[[Event], None] = lambda event: None,
    echo: Echo = silent,
    clock: Callable[[], float] = time.monotonic,
) -> Recovery | PoolRecovery:
    """Inject *fault* into a training run and follow it to the first iteration of its next attempt.

    *before* is the state of the run until then. A pool or a worker of a stream gets the fault at once, and is followed
    until that is back. *echo* gets what a drill waits for.

    Raises:
        InputError: there is no such fault, here or at all.
        SpotmpiError: the run reports no iterations, or ended before the fault was injected or it had recovered.
    """
    run = before.id
    if fault.how not in FAULTS:
        raise input_error(wording.option("fault"), fault.how, f"use one of: {', '.join(FAULTS)}")
    path = RunPaths(Path(before.folder)).spec
    if fault.member.role in WORKERS or (is_file(path) and load_spec(path).launcher == POOL):
        return _drill_pool(backend, before, fault, on_event, clock)
    if before.over:
        raise _ended(run, "trains")
    backend.require_fault(run, *fault)
    none = f"; it has reported none so far, and the drill ends after {_PATIENCE:g} s of its attempt without one"
    echo(f"{fault}: at the next iteration that the run reports{none if before.iteration is None else ''}")
    timer = _RecoveryTimer(lambda: backend.inject_fault(run, *fault), clock)
    events = _new_events(backend.events(run, True), before)
    times = _follow(events if before.iteration is not None else _with_iterations(events, run), timer, on_event)
    if times is None and not timer.injected:
        raise _ended(run, "trains")
    if times is None:
        raise SpotmpiError(f"run {run} ended before it had recovered; `spotmpi status {run}` shows why")
    return Recovery(run, *fault, times["cause"], times["lost"], times["ended"], times["started"], times["first"])


def _ended(run: str, does: str) -> SpotmpiError:
    return SpotmpiError(f"run {run} has ended, no fault was injected: a drill needs a run that {does}")


def _new_events(events: Iterable[Event], before: RunState) -> Iterator[Event]:
    """The events after the newest iteration of the state *before*: a fault cannot be injected into the past."""
    newest = before.reported
    for event in events:
        if newest is None:
            yield event
        elif event.kind == record.METRIC and event.time == newest:
            newest = None


def _with_iterations(events: Iterable[Event], run: str) -> Iterator[Event]:
    """The *events* of a run that has reported no iteration so far; a thread reads them, which may wait for ever.

    Raises:
        SpotmpiError: the run reports no iteration within `_PATIENCE` seconds of its attempt.
    """
    arrived: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for event in events:
                arrived.put(event)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, name="drill", daemon=True).start()
    has_trained, deadline = False, None
    while True:
        try:
            event = arrived.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            what = f"run {run} has reported no iteration in {_PATIENCE:g} s of its attempt, no fault was injected"
            raise SpotmpiError(f"{what}: {REMEDY}") from None
        if event is None:
            return
        if isinstance(event, Exception):
            raise event
        has_trained = has_trained or (event.kind == record.METRIC and event.values.get("kind") == protocol.METRIC)
        if has_trained or event.kind in (record.RESTARTED, record.WAITING):
            deadline = None
        elif event.kind == record.STARTED:
            deadline = time.monotonic() + _PATIENCE
        yield event


def _follow(events: Iterable[Event], timer: _RecoveryTimer, on_event: Callable[[Event], None]) -> dict[str, Any] | None:
    for event in events:
        on_event(event)
        times = timer.update(event)
        if times is not None:
            return times
    return None


def _drill_pool(
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
        raise _ended(state.id, "is up")
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
