"""A pool on the test cluster, under an environment's policies and rights: the contract of pools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import spotmpi
from spotmpi.agent.plan import WORKER, Member
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.pools.pool import Pool
from tests.cluster.environment_namespace import environment_namespace
from tests.cluster.runs import runs_in
from tests.contract.pool_contract import InjectFault, PoolContract, open_pool
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Kubernetes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("a minute; by day the contract runs on this machine, and test_pools.py on a cluster"),
]


@pytest.fixture(scope="module")
def target(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A namespace of an environment with a run volume."""
    if not isinstance(cluster, Cluster):
        pytest.skip("this test needs images of its own: run it without --kubeconfig")
    folder = tmp_path_factory.mktemp("runs")
    with environment_namespace(cluster) as namespace, runs_in(cluster, namespace, folder):
        yield Target(f"kubernetes/{namespace}", folder)


@pytest.fixture(scope="module")
def pool(cluster: Cluster, target: Target) -> Iterator[Pool]:
    overrides = [f"kubernetes.image={cluster.images['chainermn']}", "kubernetes.volume=shared"]
    yield from open_pool(spotmpi.pool(workers=2, on=target, overrides=overrides))


@pytest.fixture
def inject_fault(target: Target) -> InjectFault:
    backend = targets.backend(target)
    return lambda pool, worker: backend.inject_fault(pool.id, Member(WORKER, worker), "kill")


class TestPoolOnCluster(PoolContract):
    """All of the contract."""
