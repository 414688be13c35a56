"""Notices that a machine is about to be taken away, or that it is unfit: a signal, and when it ends an attempt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Dict

from .clock import Clock
from .plan import RunPlan


class Notice:
    """Whether this process received a signal to end; ``reason`` says so, with *receiver* as the one that got it."""

    def __init__(self, receiver: str, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signal: int | None = None
        self._receiver = receiver
        self._given: str | None = None
        for number in signals:
            signal.signal(number, self._handle_signal)

    @property
    def reason(self) -> str | None:
        """What is about to end this process, or None."""
        if self._given is not None:
            return self._given
        return "%s received %s" % (self._receiver, signal.Signals(self._signal).name) if self._signal else None

    def give(self, reason: str) -> None:
        """Let this node leave the run for *reason*, as if it had received a signal."""
        self._given = reason

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number


class NoticedNodes:
    """Decides when an attempt ends in which other nodes than node 0 get notice.

    It ends as soon as pods that stand by can take the places of all of them, and at the latest when the first of them
    has only the margin of *plan* left for a checkpoint. *echo* gets a line for people that says so.
    """

    def __init__(self, plan: RunPlan, clock: Clock, echo: Callable[[str], None]) -> None:
        self._standby = bool(plan.get("standby"))
        self._time = plan["grace"] - plan.get("margin", plan["grace"])
        self._clock = clock
        self._echo = echo
        self._until: Dict[str, float] = {}  # as `Clock.awake` counts, by the name of a node

    def are_due(self, notices: Mapping[str, str], standby_ready: int) -> bool:
        """Whether *notices*, by the names of nodes, end the attempt now that so many pods stand by."""
        now = self._clock.awake()
        new = [node for node in notices if node not in self._until]
        self._until.update((node, now + self._time) for node in new)
        if standby_ready >= len(notices) or now >= min(self._until[node] for node in notices):
            return True
        for node in new:
            text = "%s: %s; training goes on for %.3g s (checkpoint.grace less checkpoint.margin)"
            more = " or until a pod stands by that takes its place" if self._standby else ""
            self._echo(text % (node, notices[node], self._time) + more)
        return False
