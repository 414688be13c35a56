"""A laptop that sleeps longer than a run's limits finds the run going on when it wakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotmpi.agent.attempt import Attempt, Clock
from spotmpi.agent.outcomes import FAILURE, NOT_RETRYABLE, SUCCEEDED, Outcome, StopRequest
from spotmpi.agent.record import Record
from spotmpi.agent.supervisor import Supervisor

HOURS = 3600.0
LIMITS = {"start": 60.0, "run": 600.0, "no_progress": 300.0, "cost": None, "failures": 0, "interruptions": 0}


class JumpingClock(Clock):
    """The clocks of a machine that tests put to sleep: Unix time goes on, as by the battery's clock, nothing else does.

    Linux: clock_getres(2), CLOCK_MONOTONIC and CLOCK_REALTIME. macOS: mach_absolute_time(3).
    """

    def __init__(self) -> None:
        self.slept = self.worked = 0.0

    def __call__(self) -> float:
        return 1_795_000_000.0 + self.slept + self.worked

    def awake(self) -> float:
        return 5000.0 + self.worked


class SuspendingSource:
    """A stop source that suspends the machine once the program has printed a line, and lets the program end later."""

    def __init__(self, folder: Path, clock: JumpingClock, slept: float, worked: float) -> None:
        self.attempt: Attempt | None = None
        self._folder, self._clock = folder, clock
        self._slept, self._worked = slept, worked
        self._polls = 0

    def pending(self) -> StopRequest | None:
        if self.attempt and self.attempt.progress.alive:
            self._polls += 1
            if self._polls == 1:
                self._clock.slept += self._slept
                self._clock.worked += self._worked
            if self._polls == 3:
                (self._folder / "go").touch()
        return None

    def kill_requested(self) -> bool:
        return False


def outcome_of(
    folder: Path, deadlines: dict[str, float | None], slept: float = 0.0, worked: float = 0.0, **limits: Any
) -> Outcome:
    """The outcome of a program whose machine sleeps and works for so many seconds."""
    clock = JumpingClock()
    waits = ["sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done"]
    plan: Any = {
        "commands": [{"node": 0, "arguments": waits, "environment": {}}],
        "environment": {},
        "folder": str(folder),
        "metrics_pattern": None,
        "limits": {**LIMITS, **limits},
        "grace": 1.0,
        "rate": 1.0,
    }
    source = SuspendingSource(folder, clock, slept, worked)
    until = {name: None if seconds is None else clock() + seconds for name, seconds in deadlines.items()}
    record = Record(str(folder), clock)
    attempt = Attempt(1, plan, record, source, until, clock)
    source.attempt = attempt
    outcome = attempt.run()
    record.close()
    return outcome


def test_a_night_asleep_is_no_lack_of_progress_and_no_use_of_its_time(tmp_path: Path) -> None:
    """The program runs to its end; neither `no_progress` nor `limits.run` counts the time asleep."""
    assert outcome_of(tmp_path, {"start": 60.0, "run": 600.0}, slept=8 * HOURS).cause == SUCCEEDED


def test_time_at_work_counts(tmp_path: Path) -> None:
    hung = outcome_of(tmp_path, {"start": 60.0, "run": None}, worked=301.0)
    assert (hung.cause, hung.reason) == (FAILURE, "no progress for limits.no_progress (300s), last iteration none")


def test_the_time_of_a_run_counts_while_its_machine_is_awake(tmp_path: Path) -> None:
    over = outcome_of(tmp_path, {"start": 60.0, "run": 600.0}, worked=601.0, no_progress=None)
    assert over.cause == NOT_RETRYABLE and str(over.reason).startswith("limits.run (600s) is over")


def test_money_counts_as_the_bill_does_also_asleep(tmp_path: Path) -> None:
    spent = outcome_of(tmp_path, {"start": 60.0, "run": None, "cost": HOURS}, slept=8 * HOURS, cost=1.0)
    assert spent.cause == NOT_RETRYABLE and str(spent.reason).startswith("limits.cost ($1) is nearly spent")


def test_an_attempt_after_a_night_asleep_has_the_time_that_the_run_has_left(tmp_path: Path) -> None:
    """The next attempt has the 500 s that remain; counting the sleep would end it at its start."""
    clock = JumpingClock()
    plan: Any = {"limits": LIMITS, "run": "r-1", "name": "r", "work": {}, "rate": None, "grace": 1.0}
    supervisor = Supervisor(str(tmp_path), plan, clock)
    clock.slept, clock.worked = 8 * HOURS, 100.0
    until = supervisor._deadlines()["run"]
    supervisor.record.close()
    assert until == clock() + 500.0
