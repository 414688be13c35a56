"""A cluster that answers as a test scripts it: objects by kind, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spotmpi.core.errors import NotPermitted, SpotmpiError

Object = dict[str, Any]


class ScriptedCluster:
    """Holds objects; a kind in `refused` can't be listed at all, one in `forbidden` not by this user.

    `ClusterView` raises NotPermitted where the API answers 403 (see test_client.py), else SpotmpiError.
    """

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.objects = list(objects)
        self.refused: dict[str, str] = {}
        self.forbidden: set[str] = set()
        self.requests: list[str] = []

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object."""
        return next((each for each in self.list(kind, namespace) if each["metadata"]["name"] == name), None)

    def list(self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> list[Object]:
        """The objects of a kind, a namespace and labels."""
        self.requests.append(kind)
        if kind in self.forbidden:
            raise NotPermitted(f"could not list {kind}s: not permitted (User ann)")
        if kind in self.refused:
            raise SpotmpiError(self.refused[kind])
        return [each for each in self.objects if each["kind"] == kind and _fits(each["metadata"], namespace, labels)]


def _fits(metadata: Object, namespace: str | None, labels: dict[str, str] | None) -> bool:
    namespace_of_object = metadata.get("namespace")
    if namespace not in (None, "*") and namespace_of_object != namespace:
        return False
    return all((metadata.get("labels") or {}).get(key) == value for key, value in (labels or {}).items())


def node(name: str, gpus: int = 1, **more: Any) -> Object:
    """A GPU node as an environment's cluster has it; *more* are further labels, `_` for what labels can't have."""
    labels = {
        "spotmpi.dev/group": "g4dn",
        "node.kubernetes.io/instance-type": "g4dn.xlarge",
        "topology.kubernetes.io/zone": "us-east-1a",
        "eks.amazonaws.com/capacityType": "SPOT",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
    }
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | more, "creationTimestamp": "2026-11-20T11:00:00Z"},
        "spec": {"providerID": f"aws:///us-east-1a/i-{name:0>17}"},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "15Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, on: str | None = None, namespace: str = "training", phase: str = "Running", **labels: str) -> Object:
    """A pod, on a node or waiting."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": on}, "status": {"phase": phase}}
