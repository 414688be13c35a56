"""What a destroy leaves behind: resources that still bill, and network parts that keep the VPC from being deleted.

Those with the tag of an environment or its cluster are listed by the tagging API, and confirmed by their service: it
lists resources after their deletion, terminated instances for about an hour (boto3#1704), volumes for longer
(aws-cli#8197), KMS keys for the days until their deletion. Of kinds that are not in the table, all count as existing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.scaling import CLUSTER_TAG
from spotmpi.environments.resource_inventory import ResourceInventory
from spotmpi.environments.resource_kinds import (
    CLUSTER,
    CNI_INSTANCE,
    INTERFACE,
    LEFT_OVER,
    RESOURCE_KINDS,
    SECURITY_GROUP,
    ResourceKind,
    Tag,
    networks_of,
    tag_filter,
    tags_of,
)

# Attached, or gone, since it was listed.
_INTERFACE_IN_USE = ("InvalidNetworkInterfaceID.NotFound", "InvalidParameterValue", "InvalidNetworkInterface.InUse")
_GROUP_IN_USE = ("DependencyViolation", "InvalidGroup.NotFound")
_KINDS = {kind.arn: kind for kind in RESOURCE_KINDS}


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
        ids = kind.left_over(aws, inventory)
        return [LeftoverResource(kind.names, id, kind.deletion(id, inventory.region)) for id in ids]

    def tagged() -> list[LeftoverResource]:
        known = {each.id for each in leftovers}
        return [found for id, found in _existing_with_tags(aws, inventory) if id not in known]

    for kind in LEFT_OVER:
        find(kind.names, partial(of_kind, kind))
    find("tagged", tagged)
    return tuple(leftovers)


def _existing_with_tags(aws: Aws, inventory: ResourceInventory) -> list[tuple[str, LeftoverResource]]:
    """Everything with one of the tags that exists, by ARN, with its id; what is being deleted does not count.

    What Kubernetes creates in AWS, such as the load balancer of a Service, has the tag of its cluster alone
    (cloud-provider-aws, pkg/providers/v1/tags.go).
    """
    found, region = dict[str, tuple[str, LeftoverResource]](), inventory.region
    for tag in tags_of(inventory.name):
        by_kind: dict[ResourceKind | None, dict[str, str]] = defaultdict(dict)
        for arn in _tagged(aws, region, tag):
            kind, id = _parse(arn)
            by_kind[kind][arn] = id
        for kind, ids in by_kind.items():
            existing = kind.existing(aws, region, set(ids.values()), tag) if kind else ids.values()
            for arn, id in ids.items():
                if id in existing:
                    command = kind.deletion(id, region) if kind and kind.delete else "see the console of that service"
                    found[arn] = id, LeftoverResource("tagged", arn, command)
    return [found[arn] for arn in sorted(found)]


def _tagged(aws: Aws, region: str, tag: Tag) -> list[str]:
    """The ARNs with a tag.

    AWS Backup copies a file system's tags to its recovery points, which are to outlive it; `down` names them itself.
    """
    service, method = "resourcegroupstaggingapi", "get_resources"
    tag_filters = [{"Key": tag[0], "Values": [tag[1]]}]
    items = aws.pages(service, region, method, "ResourceTagMappingList", TagFilters=tag_filters)
    arns = [str(each["ResourceARN"]) for each in items]
    return [arn for arn in arns if ":recovery-point:" not in arn]


def _parse(arn: str) -> tuple[ResourceKind | None, str]:
    """Kind and id by an ARN such as arn:aws:ec2:us-east-1:1:volume/vol-1 or ...:log-group:/aws/eks/NAME/cluster.

    Those of what is in a cluster are the cluster's, with which it is deleted; None for kinds that are not in the table.
    """
    _, _, service, _, _, resource = arn.split(":", 5)
    kind, _, id = resource.partition("/" if "/" in resource.partition(":")[0] else ":")
    if service == "eks":
        return CLUSTER, id.partition("/")[0]
    return _KINDS.get((service, kind)), id.removesuffix(":*")


def existing_interfaces(aws: Aws, inventory: ResourceInventory) -> list[tuple[str, str]]:
    """The environment's network interfaces, to be recorded before it is destroyed."""
    return [(INTERFACE.names, id) for id in INTERFACE.left_over(aws, inventory)]


def delete_unused_interfaces(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the unattached interfaces that the CNI left in the environment's network; returns their ids."""
    unused = [{"Name": "status", "Values": ["available"]}, {"Name": "tag-key", "Values": [CNI_INSTANCE]}]
    return _delete_unused(aws, inventory, INTERFACE, unused, _INTERFACE_IN_USE)


def delete_unused_security_groups(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """Delete the groups that EKS created for the environment's cluster and nothing uses; returns their ids.

    EKS creates the cluster's security group, so it is in no Pulumi state, and deleting the cluster leaves it behind
    while a leaked interface uses it (aws-k8s-tester#416).
    """
    of_cluster = [tag_filter(f"aws:{CLUSTER_TAG}", inventory.name)]
    return _delete_unused(aws, inventory, SECURITY_GROUP, of_cluster, _GROUP_IN_USE)


def _delete_unused(
    aws: Aws, inventory: ResourceInventory, kind: ResourceKind, filters: Sequence[dict[str, Any]], in_use: Sequence[str]
) -> list[str]:
    """Delete those in the environment's network that match all *filters*, unless AWS refuses it by a code *in_use*."""
    networks, region = networks_of(aws, inventory), inventory.region
    if not networks:
        return []
    ids = sorted(kind.filtered(aws, region, {"Name": "vpc-id", "Values": networks}, *filters))
    return [id for id in ids if kind.remove(aws, region, id, in_use)]
