"""The contract of every backend, held by the Slurm backend on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.slurm.backend import SlurmBackend
from spotmpi.core.events import Event
from tests.contract.conftest import BackendHarness
from tests.contract.test_backend_contract import *  # noqa: F403
from tests.contract.test_backend_programs import *  # noqa: F403
from tests.testbed.slurm import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


class WithoutWaits(SlurmBackend):
    """The backend without what it says of waiting, which may come at any time."""

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        return (event for event in super().events(run, follow) if event.kind != record.WAITING)


@pytest.fixture
def harness(slurm: Slurm, tmp_path: Path) -> Iterator[BackendHarness]:
    """The cluster, with the runs of one test."""
    backend = WithoutWaits(tmp_path / "runs", look=0.3)
    yield BackendHarness(backend, timeout=60.0)
    for state in backend.list():
        if not state.over:
            backend.stop(state.id, "the test is over", now=True)
