"""The Slurm cluster that these tests share, with three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.slurm import Slurm, running_slurm

NODES = 3


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
