"""`spotmpi drill` strikes a run that trains and tells what its recovery cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.backends import choose
from jobs.cli.drill import command
from jobs.drill import drill
from jobs.errors import InputError, SpotmpiError
from jobs.events import Event


class ScriptedBackend:
    """A run whose events are written down; notes when and where it was struck."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.strikes: list[tuple[str, int, str]] = []

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        assert follow
        yield from self._events

    def state(self, run: str) -> Any:
        return SimpleNamespace(id=run)

    def strike(self, run: str, node: int, how: str) -> None:
        self.strikes.append((run, node, how))


def _metric(time: float, iteration: int, kind: str = "metric") -> Event:
    return Event(time, "metric", 1, values={"kind": kind, "iteration": iteration})


BEFORE = [Event(90.0, "started", 1), _metric(95.0, 10), _metric(100.5, 20)]
END = Event(103.0, "restarted", values={"reason": "node 1: got SIGTERM", "failures": 0, "interruptions": 1})
AFTER = [Event(108.0, "started", 2), _metric(109.0, 18, "resumed"), _metric(110.0, 28)]


def _drill(backend: Any, how: str = "evict", node: int = 1) -> Any:
    return drill(backend, "digits-1", node, how, clock=lambda: 100.0)


def test_it_strikes_once_the_run_trains_and_measures_every_phase_from_there() -> None:
    backend = ScriptedBackend([*BEFORE, _metric(101.0, 24), END, *AFTER])
    found = _drill(backend)
    assert backend.strikes == [("digits-1", 1, "evict")]
    assert (found.detected, found.rescheduled, found.resumed) == (3.0, 8.0, 10.0)
    assert found.lost_iterations == 24 - 18
    assert "6 iterations repeated (node 1: got SIGTERM)" in str(found)


def test_a_run_that_resumed_from_nothing_repeats_all() -> None:
    backend = ScriptedBackend([*BEFORE, END, Event(108.0, "started", 2), _metric(110.0, 1)])
    assert _drill(backend).lost_iterations == 20


def test_what_was_over_before_the_drill_is_not_struck() -> None:
    backend = ScriptedBackend([Event(50.0, "started", 1), _metric(60.0, 5), Event(99.0, "succeeded")])
    with pytest.raises(SpotmpiError, match="has ended and was not struck: a drill needs one that trains"):
        _drill(backend)
    assert backend.strikes == []


def test_what_a_drill_waits_for_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It works: what comes before the strike, and each turn after it. It fails: silence, for ever where none comes."""
    backend = ScriptedBackend([replace(each, time=time.time() + each.time) for each in [*BEFORE, END, *AFTER]])
    monkeypatch.setattr(choose, "backend_of", lambda run, where: backend)
    command("digits-1", node=1, json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["node"] == 1
    assert "waiting for the next iteration that the run reports; then evict of node 1" in said.err
    assert "starting again (0 failures, 1 interruptions so far): node 1: got SIGTERM" in said.err
    assert "attempt 2 started" in said.err


def test_a_run_that_ends_by_the_fault_is_told_as_such() -> None:
    backend = ScriptedBackend([*BEFORE, Event(103.0, "failed", values={"reason": "killed"})])
    with pytest.raises(SpotmpiError, match="ended before it had recovered"):
        _drill(backend)
    assert len(backend.strikes) == 1


def test_an_unknown_way_is_refused_before_anything_is_struck() -> None:
    backend = ScriptedBackend([*BEFORE])
    with pytest.raises(InputError, match="use one of: evict, delete, kill"):
        _drill(backend, how="shoot")
    assert backend.strikes == []
