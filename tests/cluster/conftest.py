"""The real cluster that these tests share, their own or one given by --kubeconfig."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.followed import Runs, runs_in
from tests.cluster.testbed import images, prerequisites
from tests.cluster.testbed.cluster import Cluster, running_cluster
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.kubernetes import RESTRICTED, Kubernetes
from tests.cluster.testbed.programs import tool_folder

PROGRAMS = ("etcd", "kubernetes", "coredns", "jobset", "kueue", "kwok", "mpi-operator")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pod_images(*names): image folders that must be on the cluster's nodes")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs and images before the first test, so that its time limit need not hold for an empty cache."""
    wanted = any("cluster" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly or session.config.getoption("--kubeconfig"):
        return
    # What can't be had here is told by the fixture, as the failure of the tests that need it.
    with contextlib.suppress(TestbedError):
        prerequisites.require()
        for tool in PROGRAMS:
            tool_folder(tool)
        images.provide(wanted_images(session))


def wanted_images(session: pytest.Session) -> set[str]:
    """Give the names of the images that the chosen tests name."""
    marks = [mark for item in session.items for mark in item.iter_markers("pod_images")]
    return {name for mark in marks for name in mark.args}


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """A running cluster: the one of --kubeconfig, else our own with the images that the chosen tests name."""
    given = request.config.getoption("--kubeconfig")
    if given:
        yield Kubernetes(Path(given).resolve(strict=True))
        return
    with running_cluster(wanted_images(request.session)) as own:
        yield own


@pytest.fixture
def testbed(cluster: Kubernetes) -> Cluster:
    """Our own cluster, whose parts a test may break and whose images are known; a given one is left alone."""
    if not isinstance(cluster, Cluster):
        pytest.skip("this test breaks parts of the cluster or needs images of its own: run it without --kubeconfig")
    return cluster


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """The name of a fresh namespace that enforces the restricted Pod Security Standard."""
    with cluster.namespace(labels=RESTRICTED) as name:
        yield name


@pytest.fixture
def runs(testbed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Runs]:
    """Runs in a fresh namespace with a run volume, of which nothing stays."""
    with runs_in(testbed, namespace, tmp_path / "copies") as runs:
        yield runs
