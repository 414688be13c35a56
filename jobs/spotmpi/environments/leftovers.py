"""What a destroy leaves behind: resources that still bill, and network parts that keep the VPC from being deleted."""

from __future__ import annotations

from dataclasses import dataclass

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.scaling import CLUSTER_TAG
from spotmpi.environments.resource_inventory import INTERFACES, ResourceInventory
from spotmpi.environments.resource_kinds import CNI_INSTANCE, RESOURCE_KINDS, networks_of
from spotmpi.environments.tagged_resources import existing_tagged_resources

# Attached, or gone, since it was listed.
_INTERFACE_IN_USE = ("InvalidNetworkInterfaceID.NotFound", "InvalidParameterValue", "InvalidNetworkInterface.InUse")
_GROUP_IN_USE, _NO_SUCH_GROUP = "DependencyViolation", "InvalidGroup.NotFound"


@dataclass(frozen=True)
class LeftoverResource:
    """A resource of a former environment, and the command that deletes it."""

    what: str
    id: str
    command: str


def find_leftovers(aws: Aws, inventory: ResourceInventory) -> tuple[LeftoverResource, ...]:
    """Everything of an environment that still exists: by kind, then whatever else has its tag."""
    leftovers = []
    for kind in RESOURCE_KINDS:
        for id in kind.find(aws, inventory):
            command = kind.command.format(id=id) + f" --region {inventory.region}"
            leftovers.append(LeftoverResource(kind.name, id, command))
    known = {each.id for each in leftovers}
    for arn in existing_tagged_resources(aws, inventory):
        if arn.id not in known:
            leftovers.append(LeftoverResource("tagged", arn.text, "see the console of that service"))
    return tuple(leftovers)


def existing_interfaces(aws: Aws, inventory: ResourceInventory) -> list[tuple[str, str]]:
    """The environment's network interfaces, to be recorded before it is destroyed."""
    (kind,) = [kind for kind in RESOURCE_KINDS if kind.name == INTERFACES]
    return [(INTERFACES, id) for id in kind.find(aws, inventory)]


def delete_unused_interfaces(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the unattached interfaces that the CNI left in the environment's network; returns their ids."""
    networks = networks_of(aws, inventory)
    if not networks:
        return []
    unused = [
        {"Name": "vpc-id", "Values": networks},
        {"Name": "status", "Values": ["available"]},
        {"Name": "tag-key", "Values": [CNI_INSTANCE]},
    ]
    deleted = []
    for each in aws.pages("ec2", inventory.region, "describe_network_interfaces", "NetworkInterfaces", Filters=unused):
        id = each["NetworkInterfaceId"]
        try:
            aws.call("ec2", inventory.region, "delete_network_interface", NetworkInterfaceId=id)
        except CallError as error:
            if error.code not in _INTERFACE_IN_USE:
                raise
        else:
            deleted.append(id)
    return deleted


def delete_unused_security_groups(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the groups that EKS created for the environment's cluster and nothing uses; returns their ids.

    EKS creates the cluster's security group, so it is in no Pulumi state, and deleting the cluster leaves it behind
    while a leaked interface uses it (aws-k8s-tester#416).
    """
    networks = networks_of(aws, inventory)
    if not networks:
        return []
    filters = [
        {"Name": "vpc-id", "Values": networks},
        {"Name": f"tag:aws:{CLUSTER_TAG}", "Values": [inventory.name]},
    ]
    deleted = []
    for each in aws.pages("ec2", inventory.region, "describe_security_groups", "SecurityGroups", Filters=filters):
        try:
            aws.call("ec2", inventory.region, "delete_security_group", GroupId=each["GroupId"])
        except CallError as error:
            if error.code not in (_GROUP_IN_USE, _NO_SUCH_GROUP):
                raise
        else:
            deleted.append(each["GroupId"])
    return deleted
