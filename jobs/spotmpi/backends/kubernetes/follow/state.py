"""What a follower has to know of a run on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotmpi.backends.kubernetes.follow.start_limit import unix
from spotmpi.plan import manifests
from spotmpi.plan.pods import CONTAINER


@dataclass(frozen=True)
class Followed:
    """What a follower has to know of a run, from its JobSet."""

    run: str
    nodes: int
    every_node: bool  # whether each node has output of its own
    submitted: float  # Unix seconds
    start_limit: float  # seconds
    failures: int  # that may be followed by another attempt


def followed(jobset: Mapping[str, Any]) -> Followed:
    """The `Followed` of a run's JobSet."""
    spec = manifests.spec_of(jobset)
    every_node, limits = spec.launcher != "mpirun", spec.limits
    name, moment = jobset["metadata"]["name"], submitted(jobset)
    return Followed(name, spec.nodes, every_node, moment, limits.start, limits.failures)


def submitted(jobset: Mapping[str, Any]) -> float:
    """When a run was submitted, Unix seconds by the API server's clock, which keeps whole ones."""
    return unix(jobset["metadata"]["creationTimestamp"])


def pulled(pod: Mapping[str, Any]) -> str | None:
    """The image of the ranks as their kubelet names it: by digest where it was pulled from a registry."""
    states = pod.get("status", {}).get("containerStatuses") or []
    own = next((str(each.get("imageID") or "") for each in states if each["name"] == CONTAINER), "")
    return own.removeprefix("docker-pullable://") or None


def node_of(pod: Mapping[str, Any]) -> int:
    """The index of a pod's node."""
    return int(pod["metadata"].get("labels", {}).get(manifests.LABEL_INDEX, 0))


def name_of(pod: Mapping[str, Any]) -> str:
    """The name of a pod."""
    return str(pod["metadata"]["name"])


def phase_of(pod: Mapping[str, Any]) -> str:
    """The phase of a pod, such as Running."""
    return str(pod.get("status", {}).get("phase"))
