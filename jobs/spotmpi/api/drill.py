"""A fault on purpose: cause one in a running run and measure what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spotmpi.agent import protocol, record
from spotmpi.backends.base import Backend
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState

HOW = ("evict", "delete", "kill")


@dataclass(frozen=True)
class Recovery:
    """What a fault cost a run; seconds count from the moment it was caused, as whoever follows the run sees it."""

    run: str
    node: int
    how: str
    cause: str  # interrupted or failed, in the words of the run
    lost_iterations: int
    detected: float  # until the attempt had ended
    rescheduled: float  # until the next attempt started
    resumed: float  # until the next attempt's first iteration was reported

    def __str__(self) -> str:
        return (
            f"{self.how} of node {self.node}: attempt ended after {self.detected:.1f} s, next one started after "
            f"{self.rescheduled:.1f} s, first iteration after {self.resumed:.1f} s, {self.lost_iterations} iterations "
            f"repeated ({self.cause})"
        )


class _Watch:
    """Follows a run from the fault to the first iteration after it.

    Times are those at which events come in, by one *clock* of this machine: those that events carry are of other
    clocks, and after the fault perhaps of another machine's than before.
    """

    def __init__(self, strike: Callable[[], None], clock: Callable[[], float]) -> None:
        self._strike = strike
        self._clock = clock
        self._struck: float | None = None
        self._last = 0
        self._marks: dict[str, Any] = {}

    @property
    def has_struck(self) -> bool:
        """Whether the run got so far that the fault was caused."""
        return self._struck is not None

    def take(self, event: Event) -> dict[str, Any] | None:
        """The marks of the recovery once it is complete, else None."""
        iteration = event.values.get("iteration") if event.kind == record.METRIC else None
        trained = iteration is not None and event.values.get("kind") == protocol.METRIC
        if self._struck is None:
            if trained:
                self._last = int(iteration or 0)
                self._struck = self._clock()
                self._strike()
            return None
        return self._after(event, trained, self._clock() - self._struck)

    def _after(self, event: Event, trained: bool, since: float) -> dict[str, Any] | None:
        if "ended" not in self._marks and trained:
            self._last = max(self._last, int(event.values["iteration"]))
        if event.kind == record.RESTARTED:
            self._marks |= {"ended": since, "cause": event.reason or "no reason given"}
        elif event.kind == record.STARTED and "ended" in self._marks:
            self._marks.setdefault("started", since)
        elif event.kind == record.METRIC and event.values.get("kind") == protocol.RESUMED:
            self._marks["from"] = int(event.values.get("iteration") or 0)
        elif trained and "started" in self._marks:
            return {**self._marks, "first": since, "lost": max(self._last - self._marks.get("from", 0), 0)}
        return None


def drill(
    backend: Backend,
    run: str,
    node: int,
    how: str,
    watch: Callable[[Event], None] = lambda event: None,
    clock: Callable[[], float] = time.monotonic,
) -> Recovery:
    """Strike *node* of a training run and follow it to the first iteration of its next attempt.

    Raises:
        InputError: *how* is none of evict, delete and kill.
        SpotmpiError: the run ended before it could be struck, or before it had recovered.
    """
    if how not in HOW:
        raise input_error("--how", how, f"use one of: {', '.join(HOW)}")
    known = backend.state(run)
    it = _Watch(lambda: backend.inject_fault(run, node, how), clock)
    marks = _followed(_live(backend.events(run, True), known), it, watch)
    if marks is None and not it.has_struck:
        raise SpotmpiError(f"run {run} has ended and was not struck: a drill needs one that trains")
    if marks is None:
        raise SpotmpiError(f"run {run} ended before it had recovered; `spotmpi status {run}` says how")
    return Recovery(run, node, how, marks["cause"], marks["lost"], marks["ended"], marks["started"], marks["first"])


def _live(events: Iterable[Event], known: RunState) -> Iterator[Event]:
    """The events after the newest iteration that is *known*: what is past cannot be struck."""
    newest = known.scalars.get("t")
    for event in events:
        if newest is None:
            yield event
        elif event.kind == record.METRIC and event.time == newest:
            newest = None


def _followed(events: Iterable[Event], it: _Watch, watch: Callable[[Event], None]) -> dict[str, Any] | None:
    for event in events:
        watch(event)
        marks = it.take(event)
        if marks is not None:
            return marks
    return None
