"""The contract of every backend, held by the Kubernetes backend over real pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.core.events import Event
from tests.cluster.runs import runs_in
from tests.contract.conftest import BackendHarness
from tests.contract.test_backend_contract import *  # noqa: F403
from tests.contract.test_backend_programs import *  # noqa: F403
from tests.testbed.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# The contract in full runs on this machine, and at night over pods; these always run over pods too.
DAILY = {
    "test_a_run_gives_its_events_in_order_and_the_same_ones_after_its_end",
    "test_a_failing_command_is_retried_up_to_the_limit_and_its_reason_reported",
    "test_a_run_fails_with_its_reason_after_as_many_attempts_as_its_limits_allow[exit code 78]",
    "test_a_run_fails_with_its_reason_after_as_many_attempts_as_its_limits_allow[an error of the user]",
    "test_an_interruption_uses_up_no_failure[exit code 75]",
    "test_a_failed_attempt_is_resumed_from_its_checkpoint",
    "test_a_stop_waits_for_a_checkpoint_and_resume_continues_from_it",
    "test_a_program_without_progress_is_killed_and_retried",
    "test_runs_at_once_do_not_mix_and_are_listed_the_oldest_first",
    "test_a_run_ends_with_a_checkpoint_before_it_costs_more_than_its_limit",
    "test_a_command_starts_in_its_folder_of_code_which_is_what_git_would_keep",
    "test_all_nodes_have_to_succeed_and_the_one_that_fails_ends_the_others",
}
_CASES = {
    f"{name}[{getattr(case, 'id', None)}]"
    for name, clause in globals().items()
    for mark in getattr(clause, "pytestmark", ())
    if mark.name == "parametrize"
    for case in mark.args[1]
}
_STALE = DAILY - _CASES - globals().keys()
assert not _STALE, f"clauses of the contract that were renamed: {sorted(_STALE)}"

# Deadlines shorter than a pod's way to its node, and a command line that finds its runs by the current context.
del test_a_run_beyond_its_time_limit_ends_with_a_checkpoint_and_is_not_retried  # noqa: F821
del test_another_process_follows_a_running_run  # noqa: F821


class WithoutWaits(KubernetesBackend):
    """The backend without what it says of waiting, which may come at any time."""

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        return (event for event in super().events(run, follow) if event.kind != record.WAITING)


@pytest.fixture
def harness(
    testbed: Cluster, runs_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BackendHarness]:
    """A namespace of the test cluster, with a run volume."""
    monkeypatch.chdir(tmp_path)
    with runs_in(testbed, runs_namespace, tmp_path / "runs"):
        kubernetes = {"image": testbed.images["base"], "volume": "shared"}
        backend = WithoutWaits(tmp_path / "runs", namespace=runs_namespace)
        yield BackendHarness(backend, {"kubernetes": kubernetes}, timeout=90.0)
