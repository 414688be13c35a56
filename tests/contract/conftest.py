"""The places that the contract of a backend is held against."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.base import Backend
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec, from_values
from spotmpi.spec.validate import require_valid
from tests.contract.living import wait_until


@dataclass
class Somewhere:
    """A backend with what a spec needs in order to run there."""

    backend: Backend
    extra: dict[str, Any] = field(default_factory=dict)
    patience: float = 60.0  # seconds in which anything that is asked for has happened
    _count: int = 0
    _mark: str = field(default_factory=lambda: secrets.token_hex(4))

    def spec(self, values: dict[str, Any]) -> JobSpec:
        """The spec with *values*, fit for this place."""
        return from_values({**self.extra, **values})

    def submit(self, values: dict[str, Any]) -> str:
        """Start a run and give its id."""
        self._count += 1
        spec = self.spec(values)
        require_valid(spec, self.backend.inspect(spec))
        run = f"contract-{self._mark}-{self._count}"
        self.backend.submit(spec, self.backend.plan(spec, run), lambda text: None)
        return run

    def resume(self, run: str, values: dict[str, Any]) -> None:
        """Continue a run that has ended."""
        spec = self.spec(values)
        self.backend.submit(spec, self.backend.plan(spec, run), lambda text: None)

    def all_events(self, values: dict[str, Any]) -> list[Event]:
        """Every event of a run from its submission to its end."""
        return list(self.backend.events(self.submit(values), follow=True))

    def state_once(self, run: str, state: str) -> RunState:
        """The run's state, as soon as it is *state*."""
        wait_until(lambda: self.backend.state(run).state == state, self.patience)
        return self.backend.state(run)

    def iteration_once(self, run: str, least: int) -> int:
        """The iteration of a run, as soon as it is at least so far."""
        return wait_until(lambda: (self.backend.state(run).iteration or 0) >= least, self.patience) and least


@pytest.fixture(params=["local"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Somewhere]:
    """Each backend in turn."""
    monkeypatch.chdir(tmp_path)
    backend = LocalBackend(tmp_path / "runs")
    yield Somewhere(backend)
    for state in backend.list():
        backend.stop(state.id, "the test is over", now=True)
        wait_until(lambda run=state.id: backend.state(run).over)  # type: ignore[misc]


@pytest.fixture
def paths_of(place: Somewhere) -> Any:
    """The paths of a run at a place, by its id."""
    return lambda run: names.RunPaths(Path(place.backend.state(run).folder))
