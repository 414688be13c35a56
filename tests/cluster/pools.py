"""Worker pools on the test cluster, with what tests need to break them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from spotmpi.agent import pod_context
from spotmpi.agent.plan import WORKER
from spotmpi.api.pools import ExistingRun
from spotmpi.backends.targets import Target
from spotmpi.core import names
from spotmpi.pools.pool import Pool
from tests.cluster.runs import FollowedRun, Runs

LIMIT = 120.0  # seconds for pods and workers to come, on a busy machine
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pods have no tests


def place(number: int, seconds: float = 0.0) -> tuple[int, str]:
    """The number and the worker's pod, after a while."""
    time.sleep(seconds)
    print("number", number)
    return number, os.environ["HOSTNAME"]


class PoolRun:
    """A pool on the test cluster with a driver on this machine."""

    def __init__(self, runs: Runs, workers: int, **values: Any) -> None:
        spec = {"name": "pool", "launcher": "pool", "pool": {"count": workers}, **values}
        self.runs = runs
        self.run: FollowedRun = runs.start(spec)

    def join(self) -> Pool:
        """A driver of the pool, as soon as it is up."""
        target = Target(f"kubernetes/{self.runs.namespace}", self.runs.backend.runs_folder)
        return Pool(ExistingRun(self.run.id, target), prints=False)

    def pods(self) -> dict[int, str]:
        """The running workers' pods, by worker."""
        selector = f"{names.LABEL_RUN}={self.run.id},{names.LABEL_ROLE}={WORKER}"
        pods = self.runs.testbed.get("pods", "-n", self.runs.namespace, "-l", selector)["items"]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running" and not _is_going(pod)]
        return {int(pod["metadata"]["labels"][pod_context.LABEL_INDEX]): pod["metadata"]["name"] for pod in running}

    def delete(self, pod: str) -> None:
        """Delete a pod, which gets SIGTERM."""
        self.runs.testbed.kubectl("delete", "pod", pod, "-n", self.runs.namespace, "--wait=false")


def _is_going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def has_workers(pool: Pool, workers: int) -> bool:
    """Whether the pool has that many workers, all of them connected."""
    known = pool.workers
    return len(known) == workers and all(worker.connected for worker in known)


def small_pods(folder: Path) -> str:
    """A pod template by which many pods fit on the test cluster's nodes: each requests a tenth of a CPU."""
    template = folder / "small-pods.json"
    container = {"name": "node", "resources": {"requests": {"cpu": "100m"}}}
    template.write_text(json.dumps({"spec": {"containers": [container]}}))
    return str(template)


def allow_egress(runs: Runs, address: str) -> None:
    """Let the pods of the namespace reach *address*, as whoever owns the servers there has to."""
    rule = {"to": [{"ipBlock": {"cidr": f"{address}/32"}}]}
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "allow-servers"}}
    runs.testbed.apply({**policy, "spec": spec}, namespace=runs.namespace)
