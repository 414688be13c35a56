"""The backends that the contract is checked against."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.record import LINE, METRIC
from spotmpi.backends.base import Backend
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values
from spotmpi.spec.validate import require_valid
from tests.contract import processes
from tests.contract.processes import wait_until


@dataclass
class BackendHarness:
    """A backend with the spec values that its runs need, and waits for their states."""

    backend: Backend
    extra: dict[str, Any] = field(default_factory=dict)
    timeout: float = 90.0  # seconds to wait for a state
    _count: int = 0
    _mark: str = field(default_factory=lambda: secrets.token_hex(4))

    def spec(self, values: dict[str, Any]) -> JobSpec:
        """The spec with *values*, completed for this backend."""
        return from_values({**self.extra, **values})

    def submit(self, values: dict[str, Any]) -> str:
        """Start a run; returns its id."""
        self._count += 1
        spec = self.spec(values)
        require_valid(spec, self.backend.inspect(spec))
        run = f"contract-{self._mark}-{self._count}"
        self.backend.submit(spec, self.backend.plan(spec, run, print), lambda text: None)
        return run

    def resume(self, run: str, values: dict[str, Any]) -> None:
        """Resume a run that has ended."""
        spec = self.spec(values)
        self.backend.submit(spec, self.backend.plan(spec, run, print), lambda text: None)

    def events(self, run: str) -> list[Event]:
        """Every event of a run from its submission to its end, which is waited for."""
        return list(self.backend.events(run, follow=True))

    def all_events(self, values: dict[str, Any]) -> list[Event]:
        """Every event of a new run."""
        return self.events(self.submit(values))

    def wait_for_state(self, run: str, state: str) -> RunState:
        """Wait until the run's state is *state*; returns it. The failure says what happened instead."""
        try:
            wait_until(lambda: self.backend.state(run).state == state, self.timeout)
        except AssertionError as error:
            now = self.backend.state(run)
            lines = [f"{run} is not {state} but {now.state} ({now.reason})", *self._story(run)]
            raise AssertionError("\n".join(lines)) from error
        return self.backend.state(run)

    def _story(self, run: str) -> list[str]:
        """What is known of a run, for the failure of a test: its events, and the newest of its output."""
        events = list(self.backend.events(run, follow=False))
        output = [str(event.values["text"]) for event in events if event.kind == LINE]
        others = [f"{event.kind}: {event.values}" for event in events if event.kind not in (LINE, METRIC)]
        return [*others, *output[-40:]]

    def wait_for_iteration(self, run: str, least: int) -> int:
        """Wait until the run has reached an iteration; returns *least*."""
        return wait_until(lambda: (self.backend.state(run).iteration or 0) >= least, self.timeout) and least


def local_harness(folder: Path, timeout: float = BackendHarness.timeout) -> Iterator[BackendHarness]:
    """The local backend with its runs in *folder*; nothing may be left of them."""
    backend = LocalBackend(folder)
    yield BackendHarness(backend, timeout=timeout)
    for state in backend.list():
        backend.stop(state.id, "the test is over", now=True)
        wait_until(lambda run=state.id: backend.state(run).over)  # type: ignore[misc]
        wait_until(lambda run=state.id: not processes.of_run(run))  # type: ignore[misc]


@pytest.fixture(params=["local"])
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendHarness]:
    """Each backend in turn."""
    monkeypatch.chdir(tmp_path)
    yield from local_harness(tmp_path / "runs")
