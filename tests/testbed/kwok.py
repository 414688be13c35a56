"""kwok: nodes without machines, on which pods only seem to run; for plans of a thousand nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lightkube.resources.core_v1 import Node

from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.programs import module_file
from tests.testbed.web import free_port, http_health

_MARK = {"kwok.x-k8s.io/node": "fake"}
# Without the stage that completes the pods of Jobs: they run until somebody stops them; and without the heartbeats of
# nodes, whose leases are enough.
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")
_AT_ONCE = 8
# By default four of each.
_OPTIONS = {"podPlayStageParallelism": 32, "nodePlayStageParallelism": 32, "nodeLeaseParallelism": 32}


class Kwok(Controller):
    """Simulates the kubelets of the nodes of `add_nodes`; each renews its *lease* (seconds) in time."""

    name = "kwok"

    def __init__(self, plane: ControlPlane, lease: int = 40) -> None:
        self._port = free_port()
        self._lease = lease
        super().__init__(plane)

    def flags(self) -> list[str]:
        ((key, value),) = _MARK.items()
        kind = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
        return [
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--manage-nodes-with-annotation-selector={key}={value}",
            f"--server-address=127.0.0.1:{self._port}",
            f"--node-lease-duration-seconds={self._lease}",
            f"--config={self.write_configuration({**kind, 'options': _OPTIONS})}",
            *(f"--config={module_file('kwok', stage)}" for stage in _STAGES),
        ]

    def refusal(self) -> str:
        return http_health(f"http://127.0.0.1:{self._port}/healthz")

    def add_nodes(self, count: int, capacity: dict[str, str]) -> None:
        """Make nodes kwok-0 and up with this capacity; only pods that tolerate the taint `kwok` land on them."""
        client = self.kubernetes.client()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(client.create, (_node(index, capacity) for index in range(count))):
                pass

    def remove_nodes(self) -> None:
        """Delete the nodes of `add_nodes`."""
        self.kubernetes.kubectl("delete", "--raw", "/api/v1/nodes?labelSelector=type%3Dkwok", limit=120)
        self.kubernetes.kubectl("wait", "--for=delete", "nodes", "--selector=type=kwok", "--timeout=300s", limit=330)


def _node(index: int, capacity: dict[str, str]) -> Any:
    name = f"kwok-{index}"
    room = {"pods": "110", "cpu": "32", "memory": "256Gi", **capacity}
    labels = {"type": "kwok", "kubernetes.io/hostname": name}
    node = {
        "metadata": {"name": name, "annotations": dict(_MARK), "labels": labels},
        "spec": {"taints": [{"key": "kwok", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }
    return Node.from_dict(node)
