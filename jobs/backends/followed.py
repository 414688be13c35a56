"""What a follower has to know of a run on a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.events import Event
from jobs.plan import manifests
from jobs.plan.pods import CONTAINER
from jobs.pod import record


@dataclass(frozen=True)
class Followed:
    """What a follower has to know of a run, from its JobSet."""

    run: str
    nodes: int
    every_node: bool  # whether each node has output of its own
    submitted: float  # Unix seconds
    start_limit: float  # seconds


def followed(jobset: Mapping[str, Any]) -> Followed:
    """The `Followed` of a run's JobSet."""
    spec = manifests.spec_of(jobset)
    submitted = float(jobset["metadata"]["annotations"][manifests.ANNOTATION_SUBMITTED])
    return Followed(jobset["metadata"]["name"], spec.nodes, spec.launcher != "mpirun", submitted, spec.limits.start)


def pulled(pod: Mapping[str, Any]) -> str | None:
    """The image of the ranks as their kubelet names it: by digest where it was pulled from a registry."""
    states = pod.get("status", {}).get("containerStatuses") or []
    own = next((str(each.get("imageID") or "") for each in states if each["name"] == CONTAINER), "")
    return own.removeprefix("docker-pullable://") or None


def ended(condition: Mapping[str, Any]) -> Event:
    """The end of a run as a condition of its JobSet tells it."""
    if condition["type"] == "Completed":
        return Event(time.time(), record.SUCCEEDED)
    return Event(time.time(), record.FAILED, values={"reason": condition.get("message", "failed")})
