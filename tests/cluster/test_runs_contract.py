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
