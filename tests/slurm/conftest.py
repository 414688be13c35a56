"""The Slurm cluster that these tests share, with three nodes, and what tests do with runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.backends.slurm.backend import SlurmBackend
from tests.contract.conftest import BackendHarness
from tests.testbed.slurm import Slurm, running_slurm

NODES = 3


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run the contract on Slurm nightly only, but for what its file names."""
    if not isinstance(item, pytest.Function) or not (daily := getattr(item.module, "DAILY", None)):
        return
    if not {item.name, item.originalname} & daily:
        item.add_marker(pytest.mark.nightly("three seconds a clause; every clause runs on this machine by day"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """The cluster; its nodes see the folders of tests, and have a /tmp of their own besides."""
    with running_slurm(tmp_path_factory.getbasetemp().parent, NODES) as slurm:
        yield slurm


@pytest.fixture
def slurm(cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The cluster, for the commands of this process; all nodes are idle."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    monkeypatch.chdir(tmp_path)
    cluster.wait_until_idle()
    return cluster


@pytest.fixture
def harness(slurm: Slurm, tmp_path: Path) -> Iterator[BackendHarness]:
    """The cluster, with the runs of one test; a follower looks at the queue more often than one on a real one."""
    backend = SlurmBackend(tmp_path / "runs", look=0.3)
    yield BackendHarness(backend, timeout=60.0)
    for state in backend.list():
        if not state.over:
            backend.stop(state.id, "the test is over", now=True)
