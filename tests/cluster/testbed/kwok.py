"""kwok: nodes without machines, on which pods only seem to run; for plans of a thousand nodes."""

from __future__ import annotations

from tests.cluster.testbed.control_plane import ControlPlane
from tests.cluster.testbed.controller import Controller
from tests.cluster.testbed.kubernetes import Object
from tests.cluster.testbed.programs import module_file
from tests.cluster.testbed.web import free_ports, http_health

_MARK = {"kwok.x-k8s.io/node": "fake"}
# Without the stage that completes the pods of Jobs: they run until somebody stops them.
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat/node-heartbeat.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
# More would not be applied within kubectl's limit on a busy machine.
_AT_ONCE = 200


class Kwok(Controller):
    """Plays the kubelet of every node that `add_nodes` made."""

    name = "kwok"

    def __init__(self, plane: ControlPlane) -> None:
        (self._port,) = free_ports(1)
        super().__init__(plane)

    def flags(self) -> list[str]:
        """Give the program's arguments."""
        ((key, value),) = _MARK.items()
        return [
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--manage-nodes-with-annotation-selector={key}={value}",
            f"--server-address=127.0.0.1:{self._port}",
            "--node-lease-duration-seconds=40",
            *(f"--config={module_file('kwok', stage)}" for stage in _STAGES),
        ]

    def install(self) -> None:
        """Nothing: its stages are files of its own."""

    def refusal(self) -> str:
        """Give "" when it serves, else why not."""
        return http_health(f"http://127.0.0.1:{self._port}/healthz")

    def add_nodes(self, count: int, capacity: dict[str, str]) -> None:
        """Make nodes kwok-0 and up with this capacity; only pods that tolerate the taint `kwok` land on them."""
        for first in range(0, count, _AT_ONCE):
            self.kubernetes.apply(*(_node(index, capacity) for index in range(first, min(first + _AT_ONCE, count))))

    def remove_nodes(self) -> None:
        """Delete the nodes that `add_nodes` made."""
        self.kubernetes.kubectl("delete", "nodes", "--selector=type=kwok", limit=300)


def _node(index: int, capacity: dict[str, str]) -> Object:
    name = f"kwok-{index}"
    room = {"pods": "110", "cpu": "32", "memory": "256Gi", **capacity}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": dict(_MARK),
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
        },
        "spec": {"taints": [{"key": "kwok", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }
