"""What a follower has to know of a run on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.plan import manifests
from jobs.plan.pods import CONTAINER


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
    submitted = float(jobset["metadata"]["annotations"][manifests.ANNOTATION_SUBMITTED])
    every_node, limits = spec.launcher != "mpirun", spec.limits
    return Followed(jobset["metadata"]["name"], spec.nodes, every_node, submitted, limits.start, limits.failures)


def pulled(pod: Mapping[str, Any]) -> str | None:
    """The image of the ranks as their kubelet names it: by digest where it was pulled from a registry."""
    states = pod.get("status", {}).get("containerStatuses") or []
    own = next((str(each.get("imageID") or "") for each in states if each["name"] == CONTAINER), "")
    return own.removeprefix("docker-pullable://") or None


def node_of(pod: Mapping[str, Any]) -> int:
    """The index of a pod's node."""
    return int(pod["metadata"].get("labels", {}).get(manifests.LABEL_INDEX, 0))
