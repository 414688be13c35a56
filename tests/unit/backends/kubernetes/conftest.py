"""Clusters and waits that tests of the Kubernetes backend share."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.backends.kubernetes import volume_access
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow import pod_log, run
from spotmpi.core.names import RunPaths
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, jobset, pod
from tests.unit.backends.kubernetes.run_volume import FakeVolume, recorded_run


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for longer than a moment."""
    monkeypatch.setattr(api, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(pod_log, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(run, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(run, "LOG_TIMEOUT", 1.0)
    monkeypatch.setattr(volume_access, "_POLL_INTERVAL", 0.01)


@pytest.fixture
def a_run(cluster: FakeCluster) -> None:
    """The cluster has a run, whose node 0 trains."""
    cluster.put(jobset(), pod(0, "Running"))


@pytest.fixture
def remote(tmp_path: Path) -> RunPaths:
    """The folder of a finished run on the run volume."""
    return recorded_run(tmp_path / "volume")


@pytest.fixture
def volume(cluster: FakeCluster, tmp_path: Path) -> FakeVolume:
    """The cluster's run volume, of which no pod runs."""
    return FakeVolume(cluster, tmp_path / "volume")


@pytest.fixture
def local(tmp_path: Path) -> RunPaths:
    """The folder of that run on this machine, which does not exist yet."""
    return RunPaths(tmp_path / "here" / RUN)
