"""Clusters and waits that tests of the Kubernetes backend share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes import backend, volume_access
from spotmpi.backends.kubernetes.follow import run
from spotmpi.core.names import RunPaths
from tests.unit.backends.kubernetes.served_api import Server
from tests.unit.backends.kubernetes.volume_cluster import VolumeCluster, recorded_run
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, jobset, pod


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for longer than a moment."""
    monkeypatch.setattr(run, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(run, "LOG_TIMEOUT", 1.0)
    monkeypatch.setattr(volume_access, "_POLL_INTERVAL", 0.01)


@pytest.fixture
def server() -> Iterator[Server]:
    """An API server on a port of this machine, whose answers a test scripts."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster of every context: it has the run, whose node 0 trains."""
    cluster = FakeCluster([pod(0, "Running")], [jobset()])
    monkeypatch.setattr(backend, "ClusterApi", lambda context, namespace: cluster)
    return cluster


@pytest.fixture
def remote(tmp_path: Path) -> RunPaths:
    """The folder of a finished run on the run volume."""
    return recorded_run(tmp_path / "volume")


@pytest.fixture
def volume_cluster(tmp_path: Path) -> VolumeCluster:
    """A cluster with that run volume, of which no pod runs."""
    return VolumeCluster(tmp_path / "volume")


@pytest.fixture
def local(tmp_path: Path) -> RunPaths:
    """The folder of that run on this machine, which does not exist yet."""
    return RunPaths(tmp_path / "here" / RUN)
