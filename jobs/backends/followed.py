"""What a follower has to know of a run on a cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.plan import manifests


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
