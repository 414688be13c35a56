"""Shares of an environment: how much of every resource a team's GPUs bring along."""

from collections.abc import Sequence
from typing import Any

from infra import names
from infra.instance_types import known
from infra.settings import Group, Team

# The one kind of node that quotas are counted in; which group serves a job is the autoscaler's affair.
FLAVOR = "nodes"


def units(groups: Sequence[Group]) -> int:
    """How many GPUs there can be at once, or nodes where none has a GPU."""
    return capacity(groups)[names.GPU_RESOURCE] or sum(group.max for group in groups)


def capacity(groups: Sequence[Group]) -> dict[str, int]:
    """All that the groups could offer at once, by resource; memory in MiB."""
    kinds = [(known()[group.type], group) for group in groups]
    return {
        "cpu": sum(kind.vcpus * group.max for kind, group in kinds),
        "memory": sum(kind.memory_mib * group.max for kind, group in kinds),
        names.GPU_RESOURCE: sum(kind.gpus * group.max for kind, group in kinds),
        names.EFA_RESOURCE: sum(kind.efa_interfaces * group.max for kind, group in kinds if group.efa),
    }


def quotas(team: Team, groups: Sequence[Group]) -> list[dict[str, str]]:
    """A team's share by resource: its GPUs, and as much of everything else as comes with that share of the whole.

    Without GPUs the share is counted in nodes.
    """
    whole = capacity(groups)
    made = []
    for resource, amount in whole.items():
        share = team.gpus if resource == names.GPU_RESOURCE else -(-amount * team.gpus // units(groups))
        if amount:
            made.append({"name": resource, "nominalQuota": f"{share}Mi" if resource == "memory" else str(share)})
    return made


def cluster_queue(environment: str, team: Team, groups: Sequence[Group]) -> dict[str, Any]:
    """The spec of a team's ClusterQueue: it borrows what others leave idle, and gives it back."""
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
