"""The real cluster that these tests share, their own or that of --kubeconfig."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.environment_namespace import environment_namespace, user_kubeconfig
from tests.cluster.runs import Runs, runs_in
from tests.testbed import images, prerequisites
from tests.testbed.cluster import Cluster, running_cluster
from tests.testbed.errors import TestbedError
from tests.testbed.kubernetes import RESTRICTED, Kubernetes


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run the contract over pods nightly only, but for what its file names."""
    if not isinstance(item, pytest.Function) or not (daily := getattr(item.module, "DAILY", None)):
        return
    if not {item.name, item.originalname} & daily:
        reason = "five seconds a clause over pods; every clause runs on this machine by day"
        item.add_marker(pytest.mark.nightly(reason))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pod_images(*names): image folders that must be on the cluster's nodes")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build images before the first test, so that time limits need not allow for an empty cache."""
    has_cluster_tests = any(item.get_closest_marker("cluster") for item in session.items) and not session.testsfailed
    if not has_cluster_tests or session.config.option.collectonly or session.config.getoption("--kubeconfig"):
        return
    # A failure is reported by the fixture, for the tests that need it.
    with contextlib.suppress(TestbedError):
        prerequisites.require()
        images.provide(image_names(session))


def image_names(session: pytest.Session) -> set[str]:
    """Give the names of the images that the chosen tests name."""
    marks = [mark for item in session.items for mark in item.iter_markers("pod_images")]
    return {name for mark in marks for name in mark.args}


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """A running cluster: the one of --kubeconfig, else our own with the images that the chosen tests name."""
    kubeconfig = request.config.getoption("--kubeconfig")
    if kubeconfig:
        yield Kubernetes(Path(kubeconfig).resolve(strict=True))
        return
    with running_cluster(image_names(request.session)) as own:
        yield own


@pytest.fixture(scope="session", autouse=True)
def math_by_processor() -> Iterator[None]:
    """Let this machine's ranks choose their math kernels by the processor, as those in pods do.

    OpenBLAS takes other kernels, and comes to other last bits, where OPENBLAS_CORETYPE is set.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def testbed(cluster: Kubernetes) -> Cluster:
    """Our own cluster, whose parts a test may break and whose images are known; never that of --kubeconfig."""
    if not isinstance(cluster, Cluster):
        pytest.skip("this test breaks parts of the cluster or needs images of its own: run it without --kubeconfig")
    return cluster


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """The name of a fresh namespace that enforces the restricted Pod Security Standard, and nothing else."""
    with cluster.namespace(labels=RESTRICTED) as name:
        yield name


@pytest.fixture
def runs_namespace(testbed: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a fresh namespace as an environment has it, whose ordinary user this process is."""
    monkeypatch.setenv("KUBECONFIG", str(user_kubeconfig(testbed)))
    with environment_namespace(testbed) as name:
        yield name


@pytest.fixture
def runs(testbed: Cluster, runs_namespace: str, tmp_path: Path) -> Iterator[Runs]:
    """Runs in a fresh namespace with a run volume, removed at the end."""
    with runs_in(testbed, runs_namespace, tmp_path / "copies") as runs:
        yield runs
