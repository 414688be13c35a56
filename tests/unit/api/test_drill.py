"""`spotmpi drill` injects a fault into a run that trains and reports what its recovery cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spotmpi.api.drill import drill
from spotmpi.backends import targets
from spotmpi.cli.drill import command
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState


class ScriptedBackend:
    """A run whose events are written down, each with when it comes in by this machine's clock.

    The events' own times are those of a node's clock, which is *ahead* by some seconds: pods take theirs from the
    kernel of their node, which nothing in Kubernetes holds to the clock of any other machine.
    """

    def __init__(self, events: list[Event], ahead: float = 0.0, recorded: int = 1) -> None:
        self._events = events
        self._ahead = ahead
        self._recorded = recorded  # how many of the events have come in by then
        self.now = 100.0
        self.faults: list[tuple[str, int, str]] = []

    def clock(self) -> float:
        return self.now

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        assert follow
        for number, event in enumerate(self._events):
            if number >= self._recorded:
                self.now = event.time
            yield replace(event, time=event.time + self._ahead)

    def state(self, run: str) -> RunState:
        metrics = [event for event in self._events[: self._recorded] if event.kind == "metric"]
        scalars = {"t": metrics[-1].time + self._ahead} if metrics else {}
        return RunState(run, "", "digits", "running", scalars=scalars)

    def inject_fault(self, run: str, node: int, fault: str) -> None:
        self.faults.append((run, node, fault))


def _metric(time: float, iteration: int, kind: str = "metric") -> Event:
    return Event(time, "metric", 1, values={"kind": kind, "iteration": iteration})


BEFORE = [Event(90.0, "started", 1), _metric(95.0, 10), _metric(100.5, 20)]
END = Event(103.5, "restarted", values={"reason": "node 1: got SIGTERM", "failures": 0, "interruptions": 1})
AFTER = [Event(108.5, "started", 2), _metric(109.0, 18, "resumed"), _metric(110.5, 28)]


def _drill(backend: Any, fault: str = "evict", node: int = 1) -> Any:
    return drill(backend, "digits-1", node, fault, clock=backend.clock)


@pytest.mark.parametrize("ahead", [0.0, 300.0, -300.0])
def test_the_fault_comes_once_the_run_trains_and_every_phase_is_measured_from_there(ahead: float) -> None:
    """Times are by the cluster's clock, whether the terminal's is 5 min ahead or behind."""
    backend = ScriptedBackend([*BEFORE, _metric(101.0, 24), END, *AFTER], ahead, recorded=2)
    recovery = _drill(backend)
    assert backend.faults == [("digits-1", 1, "evict")]
    assert (recovery.detected, recovery.rescheduled, recovery.resumed) == (3.0, 8.0, 10.0)
    assert recovery.lost_iterations == 24 - 18
    assert "6 iterations repeated (node 1: got SIGTERM)" in str(recovery)


def test_phases_are_right_where_the_next_attempt_is_on_a_machine_with_another_clock() -> None:
    class Moved(ScriptedBackend):
        def events(self, run: str, follow: bool) -> Iterator[Event]:
            for event in super().events(run, follow):
                yield replace(event, time=event.time - 120) if event in AFTER else event

    recovery = _drill(Moved([*BEFORE, END, *AFTER], recorded=2))
    assert (recovery.detected, recovery.rescheduled, recovery.resumed) == (3.0, 8.0, 10.0)


def test_a_run_that_resumed_from_nothing_repeats_all() -> None:
    backend = ScriptedBackend([*BEFORE, END, Event(108.0, "started", 2), _metric(110.0, 1)], recorded=2)
    assert _drill(backend).lost_iterations == 20


def test_a_run_that_had_ended_before_the_drill_gets_no_fault() -> None:
    backend = ScriptedBackend([Event(50.0, "started", 1), _metric(60.0, 5), Event(99.0, "succeeded")], recorded=3)
    with pytest.raises(SpotmpiError, match="has ended, no fault was injected: a drill needs a run that trains"):
        _drill(backend)
    assert backend.faults == []


def test_a_drill_prints_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Events before the fault and each attempt after it are shown, so that a drill is never silent."""
    backend = ScriptedBackend([*BEFORE, END, *AFTER])
    monkeypatch.setattr(targets, "backend_of", lambda run, on: backend)
    command("digits-1", node=1, as_json=True)
    output = capsys.readouterr()
    assert json.loads(output.out)["node"] == 1
    assert "evict of node 1: with the next iteration that the run reports" in output.err
    assert "starting again (0 failures, 1 interruptions so far): node 1: got SIGTERM" in output.err
    assert "attempt 2 started" in output.err


def test_a_run_that_ends_by_the_fault_is_an_error() -> None:
    backend = ScriptedBackend([*BEFORE, Event(103.0, "failed", values={"reason": "killed"})])
    with pytest.raises(SpotmpiError, match="ended before it had recovered"):
        _drill(backend)
    assert len(backend.faults) == 1


def test_an_unknown_fault_is_refused_before_anything_is_injected() -> None:
    backend = ScriptedBackend([*BEFORE])
    with pytest.raises(InputError, match="use one of: evict, delete, kill"):
        _drill(backend, fault="shoot")
    assert backend.faults == []
