"""`spotmpi drill` injects a fault into a run and reports what its recovery cost.

It waits until the run trains; into a pool the fault comes at once, and the drill ends when the node is back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.plan import COORDINATOR, NODE, WORKER, Member
from spotmpi.api import drill as drills
from spotmpi.api.drill import Fault, drill
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
        self.faults: list[tuple[str, Member, str]] = []

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
        reported = metrics[-1].time + self._ahead if metrics else None
        iteration = metrics[-1].values["iteration"] if metrics else None
        return RunState(run, "", "digits", "running", iteration=iteration, reported=reported)

    def require_fault(self, run: str, member: Member, fault: str) -> None:
        if member.number > 1:
            raise SpotmpiError(f"no pod of {member}")

    def inject_fault(self, run: str, member: Member, fault: str) -> None:
        self.faults.append((run, member, fault))


def metric(time: float, iteration: int, kind: str = "metric", **values: Any) -> Event:
    return Event(time, "metric", 1, values={"kind": kind, "iteration": iteration, **values})


BEFORE = [Event(90.0, "started", 1), metric(95.0, 10), metric(100.5, 20)]
END = Event(103.5, "restarted", values={"reason": "node 1: got SIGTERM", "failures": 0, "interruptions": 1})
AFTER = [Event(108.5, "started", 2), metric(109.0, 18, "resumed"), metric(110.5, 28, seconds=[0.125] * 10)]


def run_drill(backend: Any, fault: str = "evict", node: int = 1) -> Any:
    return drill(backend, backend.state("digits-1"), Fault(Member(NODE, node), fault), clock=backend.clock)


@pytest.mark.parametrize("ahead", [0.0, 300.0, -300.0])
def test_the_fault_comes_once_the_run_trains_and_every_phase_is_measured_from_there(ahead: float) -> None:
    """Times are by the cluster's clock, whether the terminal's is 5 min ahead or behind."""
    backend = ScriptedBackend([*BEFORE, metric(101.0, 24), END, *AFTER], ahead, recorded=2)
    recovery = run_drill(backend)
    assert backend.faults == [("digits-1", Member(NODE, 1), "evict")]
    assert (recovery.detected, recovery.rescheduled, recovery.resumed) == (3.0, 8.0, 10.0 - 9 * 0.125)
    assert recovery.lost_iterations == 24 - 18
    assert "6 iterations repeated (node 1: got SIGTERM)" in str(recovery)


def test_phases_are_right_where_the_next_attempt_is_on_a_machine_with_another_clock() -> None:
    class Moved(ScriptedBackend):
        def events(self, run: str, follow: bool) -> Iterator[Event]:
            for event in super().events(run, follow):
                yield replace(event, time=event.time - 120) if event in AFTER else event

    recovery = run_drill(Moved([*BEFORE, END, *AFTER], recorded=2))
    assert (recovery.detected, recovery.rescheduled, recovery.resumed) == (3.0, 8.0, 10.0 - 9 * 0.125)


@pytest.mark.parametrize(("first", "repeated"), [(1, 20), (19, 2), (21, 0)])
def test_a_run_that_does_not_report_where_it_resumed_repeats_from_its_first_iteration_on(
    first: int, repeated: int
) -> None:
    backend = ScriptedBackend([*BEFORE, END, Event(108.0, "started", 2), metric(110.0, first)], recorded=2)
    assert run_drill(backend).lost_iterations == repeated


def test_a_run_that_had_ended_before_the_drill_gets_no_fault() -> None:
    backend = ScriptedBackend([Event(50.0, "started", 1), metric(60.0, 5), Event(99.0, "succeeded")], recorded=3)
    with pytest.raises(SpotmpiError, match="has ended, no fault was injected: a drill needs a run that trains"):
        run_drill(backend)
    assert backend.faults == []


def test_a_drill_prints_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Events before the fault and each attempt after it are shown, so that a drill is never silent."""
    backend = ScriptedBackend([*BEFORE, END, *AFTER])
    monkeypatch.setattr(targets, "backend_of", lambda run, on: backend)
    command("digits-1", node="1", as_json=True)
    output = capsys.readouterr()
    assert json.loads(output.out)["member"] == "node/1"
    assert "evict of node 1: at the next iteration that the run reports" in output.err
    assert "starting again (failures: 0, interruptions: 1): node 1: got SIGTERM" in output.err
    assert "attempt 2 started" in output.err


def test_a_drill_of_a_run_that_reports_no_iterations_says_what_it_waits_for_and_gives_up_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drills, "_PATIENCE", 0.01)
    backend = ScriptedBackend([Event(90.0, "waiting"), Event(99.0, "started", 1), metric(99.5, 0, "checkpoint")])
    ended = threading.Event()
    monkeypatch.setattr(backend, "events", lambda *given: chain(type(backend).events(backend, *given), endless(ended)))
    said: list[str] = []
    with pytest.raises(SpotmpiError, match=r"no iteration in 0.01 s of its attempt, no fault .*: set metrics\.pattern"):
        drill(backend, backend.state("digits-1"), Fault(COORDINATOR, "kill"), echo=said.append)  # type: ignore[arg-type]
    ended.set()
    assert said[0].endswith("; it has reported none so far, and the drill ends after 0.01 s of its attempt without one")
    assert backend.faults == []


def test_the_recovery_of_a_run_whose_first_iteration_came_during_the_drill_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drills, "_PATIENCE", 0.5)

    class Slow(ScriptedBackend):
        def events(self, run: str, follow: bool) -> Iterator[Event]:
            for event in super().events(run, follow):
                if event == AFTER[1]:
                    threading.Event().wait(0.6)
                yield event

    assert run_drill(Slow([*BEFORE, END, *AFTER])).lost_iterations == 2


def endless(ended: threading.Event) -> Iterator[Event]:
    """No more events, of a run that goes on."""
    ended.wait(20.0)
    yield Event(200.0, "succeeded")


def test_a_run_that_ends_by_the_fault_is_an_error() -> None:
    backend = ScriptedBackend([*BEFORE, Event(103.0, "failed", values={"reason": "killed"})])
    with pytest.raises(SpotmpiError, match="ended before it had recovered"):
        run_drill(backend)
    assert len(backend.faults) == 1


def test_an_unknown_fault_is_refused_before_anything_is_announced_or_injected() -> None:
    backend = ScriptedBackend([*BEFORE])
    said: list[str] = []
    with pytest.raises(InputError, match="use one of: evict, delete, kill"):
        drill(backend, backend.state("digits-1"), Fault(Member(NODE, 1), "shoot"), echo=said.append)  # type: ignore[arg-type]
    assert backend.faults == [] and said == []


def test_what_the_backend_refuses_is_refused_before_the_next_iteration_is_announced_and_waited_for() -> None:
    backend = ScriptedBackend([*BEFORE])
    said: list[str] = []
    with pytest.raises(SpotmpiError, match="no pod of node 2"):
        drill(backend, backend.state("digits-1"), Fault(Member(NODE, 2), "evict"), echo=said.append)  # type: ignore[arg-type]
    assert backend.faults == [] and said == []


class PoolBackend(ScriptedBackend):
    """A pool whose run folder has the events that have come in before the drill."""

    def __init__(self, folder: Path, past: list[Event], *events: Event, state: str = "running") -> None:
        super().__init__([*past, *events], recorded=len(past))
        (folder / "spec.toml").write_text('launcher = "pool"\n[pool]\ncount = 2\n')
        lines = [{"t": event.time, "event": event.kind, **event.values} for event in past]
        (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._state = RunState("pool-1", str(folder), "pool", state)

    def state(self, run: str) -> RunState:
        return replace(self._state, id=run)


def of_worker(kind: str, time: float, worker: int) -> Event:
    return Event(time, kind, 1, values={"member": f"worker/{worker}", "reason": "got SIGTERM"})


PAST = [Event(80.0, "started", 1), *(of_worker("joined", 85.0, worker) for worker in (0, 1))]


def pool_drill(backend: PoolBackend, member: Member, fault: str = "evict") -> Any:
    return drill(backend, backend.state("pool-1"), Fault(member, fault), clock=backend.clock)  # type: ignore[arg-type]


def test_a_worker_is_followed_until_it_has_joined_again(tmp_path: Path) -> None:
    others = [of_worker("left", 101.0, 0), of_worker("joined", 102.0, 0)]
    events = [*others, of_worker("left", 103.5, 1), of_worker("joined", 115.0, 1)]
    backend = PoolBackend(tmp_path, PAST, *events)
    recovery = pool_drill(backend, Member(WORKER, 1))
    assert backend.faults == [("pool-1", Member(WORKER, 1), "evict")]
    assert str(recovery) == "evict of worker 1: lost after 3.5 s, back after 15.0 s (got SIGTERM)"


def test_node_0_is_followed_to_its_next_attempt(tmp_path: Path) -> None:
    restarted = Event(102.0, "restarted", values={"reason": "node 0: got SIGTERM"})
    backend = PoolBackend(tmp_path, PAST, restarted, Event(110.0, "started", 2))
    assert (
        str(pool_drill(backend, COORDINATOR))
        == "evict of node 0: lost after 2.0 s, back after 10.0 s (node 0: got SIGTERM)"
    )


def test_of_a_killed_process_nothing_is_measured_since_its_pod_stays(tmp_path: Path) -> None:
    recovery = pool_drill(PoolBackend(tmp_path, PAST), Member(WORKER, 0), "kill")
    assert str(recovery) == "kill of worker 0: its process was killed, and is started again in the same place"


def test_a_pool_that_ends_instead_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SpotmpiError, match="run pool-1 ended before worker 0 was back; `spotmpi status pool-1` shows why"
    ):
        pool_drill(PoolBackend(tmp_path, PAST, of_worker("left", 101.0, 0), Event(102.0, "stopped")), Member(WORKER, 0))
    ended = PoolBackend(tmp_path, PAST, state="stopped")
    with pytest.raises(SpotmpiError, match="has ended, no fault was injected: a drill needs a run that is up"):
        pool_drill(ended, Member(WORKER, 0))
    assert not ended.faults


def test_a_worker_of_a_stream_is_killed_as_that_of_a_pool(tmp_path: Path) -> None:
    backend = PoolBackend(tmp_path, PAST)
    (tmp_path / "spec.toml").write_text('command = ["train"]\nnodes = 2\n[stream]\nsource = "/set"\nbatch = 1\n')
    assert str(pool_drill(backend, Member(WORKER, 0), "kill")) == (
        "kill of worker 0: its process was killed, and is started again in the same place"
    )
