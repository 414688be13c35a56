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

# The contract in full runs on this machine, and at night on Slurm; these always run on Slurm too.
DAILY = {
    "test_a_run_gives_its_events_in_order_and_the_same_ones_after_its_end",
    "test_an_interruption_uses_up_no_failure[exit code 75]",
    "test_a_stop_waits_for_a_checkpoint_and_resume_continues_from_it",
    "test_all_nodes_have_to_succeed_and_the_one_that_fails_ends_the_others",
    "test_another_process_follows_a_running_run",
}

# Slurm needs longer than half a second to find nodes, and that limit is for them as well.
del test_a_run_fails_with_its_reason_after_as_many_attempts_as_its_limits_allow  # noqa: F821


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
