"""Fault injection: cause a fault in a running run and measure its recovery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import Member
from spotmpi.api.pool_drill import Fault, PoolRecovery, drill_pool, is_of_pool
from spotmpi.backends.base import Backend
from spotmpi.core import hints
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.progress import Echo
from spotmpi.runs.reader import RunState

FAULTS = ("evict", "delete", "kill")


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
    resumed: float  # until the next attempt's first iteration was reported

    def __str__(self) -> str:
        return (
            f"{self.how} of {self.member}: attempt ended after {self.detected:.1f} s, next one started after "
            f"{self.rescheduled:.1f} s, first iteration after {self.resumed:.1f} s, {self.lost_iterations} iterations "
            f"repeated ({self.cause})"
        )


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
            start = int(event.values["iteration"]) - max(len(event.values.get("seconds") or ()), 1)
            return {**self._times, "first": since, "lost": max(self._last - self._times.get("from", start), 0)}
        return None


def drill(
    backend: Backend,
    before: RunState,
    fault: Fault,
    on_event: Callable[[Event], None] = lambda event: None,
    echo: Echo = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Recovery | PoolRecovery:
    """Inject *fault* into a training run and follow it to the first iteration of its next attempt.

    *before* is the state of the run until then. A pool or a worker of a stream gets the fault at once, and is followed
    until that is back. *echo* gets what a drill waits for.

    Raises:
        InputError: there is no such fault.
        SpotmpiError: the run ended before the fault was injected, or before it had recovered.
    """
    run = before.id
    if fault.how not in FAULTS:
        raise input_error(hints.option("fault"), fault.how, f"use one of: {', '.join(FAULTS)}")
    if is_of_pool(before, fault.member):
        return drill_pool(backend, before, fault, on_event, clock)
    if before.over:
        raise _ended(run)
    echo(f"{fault}: at the next iteration that the run reports")
    timer = _RecoveryTimer(lambda: backend.inject_fault(run, *fault), clock)
    times = _follow(_new_events(backend.events(run, True), before), timer, on_event)
    if times is None and not timer.injected:
        raise _ended(run)
    if times is None:
        raise SpotmpiError(f"run {run} ended before it had recovered; `spotmpi status {run}` shows why")
    return Recovery(run, *fault, times["cause"], times["lost"], times["ended"], times["started"], times["first"])


def _ended(run: str) -> SpotmpiError:
    return SpotmpiError(f"run {run} has ended, no fault was injected: a drill needs a run that trains")


def _new_events(events: Iterable[Event], before: RunState) -> Iterator[Event]:
    """The events after the newest iteration of the state *before*: a fault cannot be injected into the past."""
    newest = before.scalars.get("t")
    for event in events:
        if newest is None:
            yield event
        elif event.kind == record.METRIC and event.time == newest:
            newest = None


def _follow(events: Iterable[Event], timer: _RecoveryTimer, on_event: Callable[[Event], None]) -> dict[str, Any] | None:
    for event in events:
        on_event(event)
        times = timer.update(event)
        if times is not None:
            return times
    return None
