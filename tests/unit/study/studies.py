"""Studies of given parameters, the problems of those that are refused, and a runner that runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from spotmpi.core.errors import InputError, UnknownRun, input_error
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.study import study_file
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
    """Runs nothing: each run has its scripted result, by default success, and with *seconds* a time of its end."""

    def __init__(self, outcomes: dict[int, str] | None = None, seconds: float | None = None) -> None:
        self.outcomes = outcomes or {}  # the n-th run of all -> its state
        self.seconds = seconds
        self.iteration: int | None = 40  # that each run reports last
        self.started: list[tuple[str, int]] = []
        self.states: dict[str, str] = {}
        self.invalid: Callable[[JobSpec], bool] = lambda spec: False

    def require_valid(self, spec: JobSpec, wrong: Iterable[str] = ()) -> None:
        if self.invalid(spec):
            raise input_error("slots", spec.slots, "too many")

    def new_id(self, spec: JobSpec) -> str:
        return f"run-{len(self.started) + 1}"

    def run(self, spec: JobSpec, run: str) -> RunState:
        self.started.append((run, spec.nodes))
        outcome = self.outcomes.get(len(self.started), "succeeded")
        if outcome == "power cut":
            self.states[run] = "running"
            raise KeyboardInterrupt
        self.states[run] = outcome
        return self.state(run)

    def follow(self, run: str) -> RunState:
        if run not in self.states:
            raise UnknownRun(input_error("run", run, "no such run").problems)
        return self.state(run)

    def state(self, run: str) -> RunState:
        state, ended = self.states[run], None if self.seconds is None else 1000.0 + self.seconds
        about = f"it {state}"
        return RunState(
            run, folder="", name="", state=state, reason=about, iteration=self.iteration, submitted=1000.0, ended=ended
        )


def states(sweep: Sweep) -> list[str]:
    """The states of its trials as recorded, in their order."""
    return [trial.state for trial in load_sweep(sweep.folder).trials]


def quiet(text: str) -> None:
    """Nobody listens."""
