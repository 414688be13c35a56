"""The `kubernetes` provider of an environment's program, applied to the test cluster by kubectl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotmpi.core.environment import Environment
from tests.engine.providers.cloud import Cloud, ResourceRequest
from tests.engine.providers.kubernetes import RELEASE, Kubernetes, object_name
from tests.engine.providers.records import Record
from tests.testbed.cluster import Cluster

LIMIT = 300.0  # seconds for one object


class ApplyingKubernetes(Kubernetes):
    """A `kubernetes` provider that applies its objects to a cluster, except charts, which can't be downloaded.

    The volume is a folder of this machine instead of EFS. It logs in as the administrator of the cluster, which accepts
    no tokens of EKS.
    """

    def __init__(self, cloud: Cloud, testbed: Cluster, volume: Path) -> None:
        super().__init__(cloud)
        self._cluster, self._volume = testbed, volume
        self.applied: set[tuple[str, str, str]] = set()  # kind, namespace, name

    def create(self, resource: ResourceRequest, inputs: dict[str, Any]) -> Record:
        """Create an object in the state and in the cluster."""
        self._apply(resource, inputs)
        return super().create(resource, inputs)

    def update(
        self, resource: ResourceRequest, identity: str, inputs: dict[str, Any], state: Mapping[str, Any]
    ) -> Record:
        """Change an object in the state and in the cluster."""
        self._apply(resource, inputs)
        return super().update(resource, identity, inputs, state)

    def clear(self, testbed: Cluster) -> None:
        """Delete all applied objects, which the program leaves to the deletion of the cluster."""
        for kind, namespace, name in sorted(self.applied):
            where = ["-n", namespace] if namespace else []
            testbed.kubectl("delete", kind, name, *where, "--ignore-not-found", "--wait=false")

    def _apply(self, resource: ResourceRequest, inputs: dict[str, Any]) -> None:
        if resource.token == RELEASE:
            return
        applied = dict(inputs)
        if applied["kind"] == "PersistentVolume":
            spec = {key: value for key, value in applied["spec"].items() if key not in ("csi", "mountOptions")}
            applied["spec"] = {**spec, "hostPath": {"path": str(self._volume), "type": "Directory"}}
        namespace, _, name = object_name(inputs).rpartition("/")
        self.applied.add((_resource(inputs), namespace, name))
        command = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        self._cluster.kubectl(*command, stdin=yaml.safe_dump(applied), limit=LIMIT)


def _resource(inputs: dict[str, Any]) -> str:
    group, _, version = str(inputs["apiVersion"]).rpartition("/")
    return f"{inputs['kind']}.{version}.{group}" if group else str(inputs["kind"])


def join_group(testbed: Cluster, node: str, environment: Environment, taint: bool = True) -> None:
    """Give a node the labels, the GPUs and the taint of the first group; a system node, too, without the *taint*."""
    (group, *_) = environment.node_groups
    more = {"node.kubernetes.io/instance-type": group.type, "topology.kubernetes.io/zone": group.zone}
    labels = [f"{key}={value}" for key, value in (group.labels | more).items()]
    testbed.kubectl("label", "node", node, "--overwrite", *labels)
    value = f"{group.taint.key}={group.taint.value}:{group.taint.effect}"
    if taint:
        testbed.kubectl("taint", "node", node, "--overwrite", value)
    testbed.node(node).set_gpus(group.gpus)


def leave_group(testbed: Cluster, node: str, environment: Environment, taint: bool = True) -> None:
    """Undo what `join_group` did."""
    (group, *_) = environment.node_groups
    labels = [*group.labels, "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"]
    testbed.kubectl("label", "node", node, *(f"{key}-" for key in labels))
    if taint:
        testbed.kubectl("taint", "node", node, f"{group.taint.key}-")
    testbed.node(node).set_gpus(0)
