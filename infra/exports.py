"""The outputs of a stack: all that `spotmpi` needs to know of an environment, and no secrets."""

from collections.abc import Mapping
from typing import Any

import pulumi

from infra import gpu_nodes, names
from infra.ci_access import CiAccess
from infra.instance_types import catalog
from infra.settings import Group, Settings
from infra.storage import FileSystemIds

# jobs/spotmpi/core/environment.py reads this shape; a change that older readers can't handle raises the number.
CONTRACT = 1


def environment(
    settings: Settings,
    cluster_arn: pulumi.Output[str],
    repositories: Mapping[str, pulumi.Output[str]],
    storage: FileSystemIds,
) -> None:
    """Export a whole environment."""
    values: dict[str, Any] = {
        "contract": CONTRACT,
        "name": settings.name,
        "region": settings.region,
        "zone": settings.zone,
        "cluster": settings.name,
        "cluster_arn": cluster_arn,
        "namespace": settings.namespace,
        "volume_claim": names.VOLUME_CLAIM,
        "ssh_secret": names.SSH_SECRET,
        "placement_account": names.PLACEMENT_ACCOUNT,
        "repositories": dict(repositories),
        "node_groups": [
            node_group(each, settings.network.private) | ({"group": group.name} if each.name != group.name else {})
            for group in settings.groups
            for each in settings.in_zones(group)
        ],
        "file_system_id": storage.file_system_id,
        "access_point_id": storage.access_point_id,
    }
    for key, value in values.items():
        pulumi.export(key, value)


def data(settings: Settings, storage: FileSystemIds) -> None:
    """Export persistent storage for the stack that uses it."""
    pulumi.export("zone", settings.zone if settings.storage.one_zone else None)
    pulumi.export("file_system_id", storage.file_system_id)
    pulumi.export("access_point_id", storage.access_point_id)


def node_group(group: Group, private: bool) -> dict[str, Any]:
    """A group in one zone: its machines, how many may run, and the labels and taint to schedule onto one."""
    kind = catalog()[group.type]
    return {
        "name": group.name,
        "zone": group.zones[0],
        "type": group.type,
        "market": group.market,
        "reservation": group.reservation,
        "gpus": kind.gpus,
        "vcpus": kind.vcpus,
        "memory_mib": kind.memory_mib,
        "allocatable_mib": kind.allocatable_mib,
        "min": group.min,
        "max": group.max,
        "disk_gib": group.disk_gib,
        "disk_throughput": group.root_disk_throughput(kind),
        "public_address": not private,
        "placement_group": group.has_placement_group,
        "efa_interfaces": kind.efa_interfaces if group.efa else 0,
        "labels": gpu_nodes.labels(group, kind),
        "taint": {"key": gpu_nodes.taint_key(kind), "value": names.TAINT_VALUE, "effect": "NoSchedule"},
    }


def roles(access: CiAccess) -> None:
    """Export the roles that workflows assume, and the boundary of the roles that they create."""
    pulumi.export("ci_roles", {**access.role_arns, "boundary": access.boundary_arn})
