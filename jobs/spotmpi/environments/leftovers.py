"""What a destroy leaves behind: resources that still bill, and network parts that keep the VPC from being deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.scaling import CLUSTER_TAG
from spotmpi.environments.resource_inventory import INTERFACES, ResourceInventory
from spotmpi.environments.resource_kinds import CNI_INSTANCE, RESOURCE_KINDS, ResourceKind, networks_of, tag_filter
from spotmpi.environments.tagged_resources import existing_tagged_resources

# Attached, or gone, since it was listed.
_INTERFACE_IN_USE = ("InvalidNetworkInterfaceID.NotFound", "InvalidParameterValue", "InvalidNetworkInterface.InUse")
_GROUP_IN_USE = ("DependencyViolation", "InvalidGroup.NotFound")


@dataclass(frozen=True)
class LeftoverResource:
    """A resource of a former environment, and the command that deletes it."""

    what: str
    id: str
    command: str


def find_leftovers(aws: Aws, inventory: ResourceInventory) -> tuple[LeftoverResource, ...]:
    """Everything of an environment that still exists: by kind, then whatever else has its tag.

    A kind that can't be asked for, as a policy may deny a single call, is one of them, with the reason.
    """
    leftovers: list[LeftoverResource] = []

    def find(kind: str, list_all: Callable[[], list[LeftoverResource]]) -> None:
        try:
            leftovers.extend(list_all())
        except CallError as error:
            leftovers.append(LeftoverResource(kind, "not checked", str(error)))

    def of_kind(kind: ResourceKind) -> list[LeftoverResource]:
        ids = kind.find(aws, inventory)
        return [LeftoverResource(kind.name, id, kind.deletion(id, inventory.region)) for id in ids]

    def tagged() -> list[LeftoverResource]:
        known = {each.id for each in leftovers}
        arns = [arn.text for arn in existing_tagged_resources(aws, inventory) if arn.id not in known]
        return [LeftoverResource("tagged", arn, "see the console of that service") for arn in arns]

    for kind in RESOURCE_KINDS:
        find(kind.name, partial(of_kind, kind))
    find("tagged", tagged)
    return tuple(leftovers)


def existing_interfaces(aws: Aws, inventory: ResourceInventory) -> list[tuple[str, str]]:
    """The environment's network interfaces, to be recorded before it is destroyed."""
    (kind,) = [kind for kind in RESOURCE_KINDS if kind.name == INTERFACES]
    return [(INTERFACES, id) for id in kind.find(aws, inventory)]


def delete_unused_interfaces(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the unattached interfaces that the CNI left in the environment's network; returns their ids."""
    unused = [{"Name": "status", "Values": ["available"]}, {"Name": "tag-key", "Values": [CNI_INSTANCE]}]
    found = _in_network(aws, inventory, "describe_network_interfaces", "NetworkInterfaces", unused)
    region, ids = inventory.region, [str(each["NetworkInterfaceId"]) for each in found]
    delete = partial(aws.find, "ec2", region, "delete_network_interface", _INTERFACE_IN_USE)
    return [id for id in ids if delete(NetworkInterfaceId=id) is not None]


def delete_unused_security_groups(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the groups that EKS created for the environment's cluster and nothing uses; returns their ids.

    EKS creates the cluster's security group, so it is in no Pulumi state, and deleting the cluster leaves it behind
    while a leaked interface uses it (aws-k8s-tester#416).
    """
    of_cluster = [tag_filter(f"aws:{CLUSTER_TAG}", inventory.name)]
    found = _in_network(aws, inventory, "describe_security_groups", "SecurityGroups", of_cluster)
    region, ids = inventory.region, [str(each["GroupId"]) for each in found]
    delete = partial(aws.find, "ec2", region, "delete_security_group", _GROUP_IN_USE)
    return [id for id in ids if delete(GroupId=id) is not None]


def _in_network(
    aws: Aws, inventory: ResourceInventory, method: str, key: str, filters: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What EC2 lists under *key* in the environment's network, by *filters*; nothing without a network."""
    networks = networks_of(aws, inventory)
    if not networks:
        return []
    in_network = [{"Name": "vpc-id", "Values": networks}, *filters]
    return aws.pages("ec2", inventory.region, method, key, Filters=in_network)
