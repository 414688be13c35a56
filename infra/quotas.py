"""Kueue quotas of teams: GPUs, and the matching share of every other resource."""

from collections.abc import Sequence
from typing import Any

from infra import names
from infra.instance_types import catalog
from infra.settings import Group, Team

# The one kind of node that quotas are counted in; the autoscaler decides which group serves a job.
FLAVOR = "nodes"


def units(groups: Sequence[Group]) -> int:
    """The most GPUs that can run at once, or nodes where none has a GPU."""
    return capacity(groups)[names.GPU_RESOURCE] or sum(group.max for group in groups)


def capacity(groups: Sequence[Group]) -> dict[str, int]:
    """The capacity of all groups at their max, by resource; memory in MiB."""
    kinds = [(catalog()[group.type], group) for group in groups]
    return {
        "cpu": sum(kind.vcpus * group.max for kind, group in kinds),
        "memory": sum(kind.memory_mib * group.max for kind, group in kinds),
        names.GPU_RESOURCE: sum(kind.gpus * group.max for kind, group in kinds),
        names.EFA_RESOURCE: sum(kind.efa_interfaces * group.max for kind, group in kinds if group.efa),
    }


def quotas(team: Team, groups: Sequence[Group]) -> list[dict[str, str]]:
    """A team's quota by resource: its GPUs, and the same share of every other resource.

    Without GPUs the share is counted in nodes.
    """
    total = capacity(groups)
    resources = []
    for resource, amount in total.items():
        share = team.gpus if resource == names.GPU_RESOURCE else -(-amount * team.gpus // units(groups))
        if amount:
            resources.append({"name": resource, "nominalQuota": f"{share}Mi" if resource == "memory" else str(share)})
    return resources


def cluster_queue(environment: str, team: Team, groups: Sequence[Group]) -> dict[str, Any]:
    """The spec of a team's ClusterQueue: it borrows idle quota of others, who can reclaim it."""
    shares = quotas(team, groups)
    return {
        "cohort": environment,
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"},
        "resourceGroups": [
            {
                "coveredResources": [share["name"] for share in shares],
                "flavors": [{"name": FLAVOR, "resources": shares}],
            }
        ],
    }
