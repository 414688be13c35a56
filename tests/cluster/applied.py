"""What an environment's program makes inside its cluster, made by kubectl with the kubeconfig that the program gave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotmpi.core.environment import Environment
from tests.engine.providers.cloud import Asked, Cloud
from tests.engine.providers.kubernetes import RELEASE, Kubernetes, object_name
from tests.engine.providers.records import Record
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Kubernetes as Reached

LIMIT = 300.0  # seconds for one object


class Applied(Kubernetes):
    """The `kubernetes` provider that really applies its objects; charts it doesn't, for they can't be fetched.

    The volume is a folder of this machine in place of EFS. *folder* gets the kubeconfig.
    """

    def __init__(self, cloud: Cloud, folder: Path, volume: Path) -> None:
        super().__init__(cloud)
        self._reached, self._volume = Reached(folder / "kubeconfig of the program"), volume
        self.made: set[tuple[str, str, str]] = set()  # kind, namespace, name

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Take the kubeconfig, once it is known."""
        super().configure(settings)
        if self._endpoint is not None:
            self._reached.kubeconfig.write_text(settings["kubeconfig"])

    def create(self, asked: Asked, inputs: dict[str, Any]) -> Record:
        """Make an object, here and there."""
        self._apply(asked, inputs)
        return super().create(asked, inputs)

    def update(self, asked: Asked, identity: str, inputs: dict[str, Any], state: Mapping[str, Any]) -> Record:
        """Change an object, here and there."""
        self._apply(asked, inputs)
        return super().update(asked, identity, inputs, state)

    def clear(self, testbed: Cluster) -> None:
        """Delete everything that was made there: the program leaves that to the end of the cluster itself."""
        for kind, namespace, name in sorted(self.made):
            where = ["-n", namespace] if namespace else []
            testbed.kubectl("delete", kind, name, *where, "--ignore-not-found", "--wait=false")

    def _apply(self, asked: Asked, inputs: dict[str, Any]) -> None:
        if asked.token == RELEASE:
            return
        made = dict(inputs)
        if made["kind"] == "PersistentVolume":
            kept = {key: value for key, value in made["spec"].items() if key not in ("csi", "mountOptions")}
            made["spec"] = {**kept, "hostPath": {"path": str(self._volume), "type": "Directory"}}
        namespace, _, name = object_name(inputs).rpartition("/")
        self.made.add((_resource(inputs), namespace, name))
        told = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        self._reached.kubectl(*told, given=yaml.safe_dump(made), limit=LIMIT)


def _resource(inputs: dict[str, Any]) -> str:
    group, _, version = str(inputs["apiVersion"]).rpartition("/")
    return f"{inputs['kind']}.{version}.{group}" if group else str(inputs["kind"])


def dress(testbed: Cluster, node: str, there: Environment) -> None:
    """Make a node one of the first group's: its labels, its taint and its GPUs, as the autoscaler brings it."""
    (group, *_) = there.node_groups
    more = {"node.kubernetes.io/instance-type": group.type, "topology.kubernetes.io/zone": there.zone}
    labels = [f"{key}={value}" for key, value in (group.labels | more).items()]
    testbed.kubectl("label", "node", node, "--overwrite", *labels)
    testbed.kubectl("taint", "node", node, "--overwrite", f"{group.taint.key}={group.taint.value}:{group.taint.effect}")
    testbed.node(node).set_gpus(group.gpus)


def undress(testbed: Cluster, node: str, there: Environment) -> None:
    """Make it a plain node again."""
    (group, *_) = there.node_groups
    labels = [*group.labels, "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"]
    testbed.kubectl("label", "node", node, *(f"{key}-" for key in labels))
    testbed.kubectl("taint", "node", node, f"{group.taint.key}-")
    testbed.node(node).set_gpus(0)
