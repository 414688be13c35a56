"""The kinds of resources that can outlive an environment, found by tag, by name and by recorded id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.aws import log_group
from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.environments.resource_inventory import (
    FILE_SYSTEMS,
    INTERFACES,
    KEYS,
    LOG_GROUPS,
    MOUNT_TARGETS,
    NETWORKS,
    REPOSITORIES,
    STACKS,
    VOLUMES,
    ResourceInventory,
)

TAG = "spotmpi:environment"
# The CNI tags its interfaces with the cluster's name and with the instance that uses them.
CNI_CLUSTER, CNI_INSTANCE = "cluster.k8s.amazonaws.com/name", "node.k8s.amazonaws.com/instance_id"
# eksctl tags its stacks with the name of the cluster, in its current and in its first spelling.
_EKSCTL_CLUSTER = ("alpha.eksctl.io/cluster-name", "eksctl.cluster.k8s.io/v1alpha1/cluster-name")
Ids = list[str]
Tag = tuple[str, str]  # its key and value


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource that can be left over: how to find it, why it matters, and the command that deletes one."""

    name: str
    find: Callable[[Aws, ResourceInventory], Ids]
    remedy: str
    command: str

    def deletion(self, id: str, region: str) -> str:
        """The command that deletes one of them."""
        return f"{self.command.format(id=id)} --region {region}"


def _file_systems(aws: Aws, inventory: ResourceInventory) -> Ids:
    items = aws.pages("efs", inventory.region, "describe_file_systems", "FileSystems")
    tag = {"Key": TAG, "Value": inventory.name}
    known = inventory.of(FILE_SYSTEMS)
    return [each["FileSystemId"] for each in items if tag in each["Tags"] or each["FileSystemId"] in known]


def _mount_targets(aws: Aws, inventory: ResourceInventory) -> Ids:
    """Those of the environment's file systems, and the recorded ones: persistent storage belongs to another stack."""
    queries = [{"FileSystemId": system} for system in _file_systems(aws, inventory)]
    queries += [{"MountTargetId": target} for target in sorted(inventory.of(MOUNT_TARGETS))]
    return sorted({target for query in queries for target in _targets(aws, inventory.region, query)})


def _targets(aws: Aws, region: str, query: dict[str, str]) -> Ids:
    try:
        items = aws.pages("efs", region, "describe_mount_targets", "MountTargets", **query)
    except CallError as error:
        if error.code not in ("FileSystemNotFound", "MountTargetNotFound"):
            raise
        return []
    return [each["MountTargetId"] for each in items]


def tags_of(environment: str) -> tuple[Tag, ...]:
    """The tags of an environment's resources, by spotmpi and by Kubernetes in its cluster of the same name."""
    return ((TAG, environment), (f"kubernetes.io/cluster/{environment}", "owned"))


def networks_of(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """The ids of the environment's VPCs: tagged or recorded."""
    vpcs = aws.pages("ec2", inventory.region, "describe_vpcs", "Vpcs", Filters=[tag_filter(TAG, inventory.name)])
    return sorted({vpc["VpcId"] for vpc in vpcs} | inventory.of(NETWORKS))


def _interfaces(aws: Aws, inventory: ResourceInventory) -> Ids:
    # The CNI's interfaces have none of our tags, but are in our network or carry the cluster's name.
    queries = [[tag_filter(key, inventory.name)] for key in (TAG, CNI_CLUSTER)]
    if networks := networks_of(aws, inventory):
        queries.append([{"Name": "vpc-id", "Values": networks}, {"Name": "tag-key", "Values": [CNI_INSTANCE]}])
    if known := sorted(inventory.of(INTERFACES)):
        queries.append([{"Name": "network-interface-id", "Values": known}])
    return _by_filters(aws, inventory, "network_interfaces", "NetworkInterfaceId", queries)


def _volumes(aws: Aws, inventory: ResourceInventory) -> Ids:
    queries = [[tag_filter(*tag)] for tag in tags_of(inventory.name)]
    if known := sorted(inventory.of(VOLUMES)):
        queries.append([{"Name": "volume-id", "Values": known}])
    return _by_filters(aws, inventory, "volumes", "VolumeId", queries)


def _by_filters(
    aws: Aws, inventory: ResourceInventory, what: str, key: str, queries: Sequence[list[dict[str, Any]]]
) -> Ids:
    """Ids of EC2's *what* that match any of the *queries*."""
    key_of_items = "".join(part.capitalize() for part in what.split("_"))
    items = (
        each[key]
        for query in queries
        for each in aws.pages("ec2", inventory.region, f"describe_{what}", key_of_items, Filters=query)
    )
    return sorted(set(items))


def tag_filter(key: str, value: str) -> dict[str, Any]:
    """The filter of EC2's lists for resources with a tag."""
    return {"Name": f"tag:{key}", "Values": [value]}


def _log_groups(aws: Aws, inventory: ResourceInventory) -> Ids:
    prefixes = sorted(
        {f"/aws/eks/{inventory.name}/", f"/aws/containerinsights/{inventory.name}/"} | inventory.of(LOG_GROUPS)
    )
    items = {name for prefix in prefixes for name in log_group.with_prefix(aws, inventory.region, prefix)}
    return sorted(
        each for each in items if each in prefixes or any(each.startswith(p) for p in prefixes if p[-1] == "/")
    )


def _keys(aws: Aws, inventory: ResourceInventory) -> Ids:
    """The recorded keys that are not scheduled for deletion; keys have no name to find them by."""
    return [key for key in sorted(inventory.of(KEYS)) if key_exists(aws, inventory.region, key)]


def key_exists(aws: Aws, region: str, key: str) -> bool:
    """Whether a key exists and is not scheduled for deletion, which costs nothing."""
    found = aws.find("kms", region, "describe_key", {"NotFoundException"}, KeyId=key)
    return found is not None and found["KeyMetadata"]["KeyState"] not in ("PendingDeletion", "PendingReplicaDeletion")


def cluster_exists(aws: Aws, region: str, name: str) -> bool:
    """Whether EKS has a cluster of that name, including one that is being deleted."""
    return aws.find("eks", region, "describe_cluster", {"ResourceNotFoundException"}, name=name) is not None


def _repositories(aws: Aws, inventory: ResourceInventory) -> Ids:
    items = aws.pages("ecr", inventory.region, "describe_repositories", "repositories")
    names, known = [each["repositoryName"] for each in items], inventory.of(REPOSITORIES)
    return sorted(name for name in names if name.startswith(f"{inventory.name}/") or name in known)


def _stacks(aws: Aws, inventory: ResourceInventory) -> Ids:
    """The stack with the environment's name, and those that eksctl created for a cluster of that name."""
    items = aws.pages("cloudformation", inventory.region, "describe_stacks", "Stacks")
    return sorted(
        each["StackName"]
        for each in items
        if each["StackName"] == inventory.name
        or any(tag["Key"] in _EKSCTL_CLUSTER and tag["Value"] == inventory.name for tag in each.get("Tags", []))
    )


_BILLED_BY_GB = "they bill by the GB"
RESOURCE_KINDS = (
    ResourceKind(
        STACKS,
        _stacks,
        "they hold resources of a cluster of that name that another tool created",
        "aws cloudformation delete-stack --stack-name {id}",
    ),
    ResourceKind(FILE_SYSTEMS, _file_systems, _BILLED_BY_GB, "aws efs delete-file-system --file-system-id {id}"),
    ResourceKind(
        MOUNT_TARGETS,
        _mount_targets,
        "they block the deletion of the file system and a subnet",
        "aws efs delete-mount-target --mount-target-id {id}",
    ),
    ResourceKind(
        INTERFACES,
        _interfaces,
        "they block the deletion of subnets and security groups",
        "aws ec2 delete-network-interface --network-interface-id {id}",
    ),
    ResourceKind(VOLUMES, _volumes, _BILLED_BY_GB, "aws ec2 delete-volume --volume-id {id}"),
    ResourceKind(
        LOG_GROUPS,
        _log_groups,
        "they bill by the GB, and a new environment can't create its own",
        "aws logs delete-log-group --log-group-name {id}",
    ),
    ResourceKind(
        KEYS, _keys, "each is billed monthly", "aws kms schedule-key-deletion --pending-window-in-days 7 --key-id {id}"
    ),
    ResourceKind(
        REPOSITORIES, _repositories, _BILLED_BY_GB, "aws ecr delete-repository --force --repository-name {id}"
    ),
)
