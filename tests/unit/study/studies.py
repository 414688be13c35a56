"""Studies of given parameters, the problems of those that are refused, and a runner that runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from spotmpi.core.errors import InputError, UnknownRun, input_error
from spotmpi.core.wording import Echo
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.study import execution, study_file
from spotmpi.study.study import Study
from spotmpi.study.sweep import Sweep, load_sweep

GPU = {"image": "chainermn", "program": "digits", "args": ["--global-batch", "64"], "resources": {"gpu": 1}}


def study_of(parameters: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> Study:
    return study_file.from_values({"spec": spec, "parameters": parameters, **more})


def problems_of(parameters: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> list[str]:
    with pytest.raises(InputError) as refused:
        study_of(parameters, spec, **more)
    return [str(problem) for problem in refused.value.problems]


class FakeRunner:
    """Runs nothing: each run has its scripted result, by default success, and takes *seconds* by `clock`.

    The time of day, by which its record has its begin and end, is set back meanwhile.
    """

    def __init__(self, outcomes: dict[int, str] | None = None, seconds: float | None = None) -> None:
        self.outcomes = outcomes or {}  # the n-th run of all -> its state
        self.seconds, self.now = seconds or 0.0, 50.0
        self.iteration: int | None = 40  # that each run reports last
        self.started: list[tuple[str, int]] = []
        self.states: dict[str, str] = {}
        self.invalid: Callable[[JobSpec], bool] = lambda spec: False

    def require_valid(self, spec: JobSpec, wrong: Iterable[str] = ()) -> None:
        if self.invalid(spec):
            raise input_error("slots", spec.slots, "too many")

    def clock(self) -> float:
        return self.now

    def new_id(self, spec: JobSpec) -> str:
        return f"run-{len(self.started) + 1}"

    def run(self, spec: JobSpec, run: str) -> RunState:
        self.started.append((run, spec.nodes))
        outcome = self.outcomes.get(len(self.started), "succeeded")
        if outcome == "power cut":
            self.states[run] = "running"
            raise KeyboardInterrupt
        self.states[run] = outcome
        self.now += self.seconds
        return self.state(run)

    def follow(self, run: str) -> RunState:
        if run not in self.states:
            raise UnknownRun(input_error("run", run, "no such run").problems)
        self.now += self.seconds
        return self.state(run)

    def state(self, run: str) -> RunState:
        state, ended = self.states[run], 1000.0 - self.seconds
        about = f"it {state}"
        return RunState(
            run, folder="", name="", state=state, reason=about, iteration=self.iteration, submitted=1000.0, ended=ended
        )


def states(sweep: Sweep) -> list[str]:
    """The states of its trials as recorded, in their order."""
    return [trial.state for trial in load_sweep(sweep.folder).trials]


def carry_out(sweep: Sweep, runner: FakeRunner, echo: Echo | None = None) -> None:
    """Run the trials of a sweep by the runner's clock."""
    execution.run_sweep(sweep, runner, echo or quiet, runner.clock)


def quiet(text: str) -> None:
    """Nobody listens."""
