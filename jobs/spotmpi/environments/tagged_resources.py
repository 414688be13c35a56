"""Existing resources with the tag of an environment or its cluster: listed by the tagging API, confirmed elsewhere.

The tagging API lists resources after their deletion: terminated instances for about an hour (boto3#1704), volumes for
longer (aws-cli#8197), KMS keys for the days until their deletion. Kinds without a check here count as existing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotmpi.aws import log_group
from spotmpi.aws.account import Aws
from spotmpi.environments.resource_inventory import ResourceInventory
from spotmpi.environments.resource_kinds import Ids, Tag, cluster_exists, key_exists, tag_filter, tags_of


@dataclass(frozen=True)
class Arn:
    """The parts of an ARN that identify a resource, such as `ec2`, `volume` and `vol-1`."""

    text: str
    service: str
    kind: str
    id: str


@dataclass(frozen=True)
class _Listing:
    """How EC2 lists a kind: the call, the key of its items, the keys of an id, and the states of existing items."""

    method: str
    key: str
    ids: Sequence[str]
    states: tuple[str, Sequence[str]] | None = None
    paged: bool = True
    filters: str = "Filters"


def existing_tagged_resources(aws: Aws, inventory: ResourceInventory) -> list[Arn]:
    """Everything with one of the tags that exists, by ARN; what is being deleted does not count.

    What Kubernetes creates in AWS, such as the load balancer of a Service, has the tag of its cluster alone
    (cloud-provider-aws, pkg/providers/v1/tags.go).
    """
    return sorted(
        {arn for tag in tags_of(inventory.name) for arn in _existing_with(aws, inventory.region, tag)},
        key=lambda arn: arn.text,
    )


def _existing_with(aws: Aws, region: str, tag: Tag) -> Iterator[Arn]:
    listed: dict[tuple[str, str], list[Arn]] = defaultdict(list)
    for arn in _tagged(aws, region, tag):
        listed[arn.service, arn.kind].append(arn)
    for (service, kind), arns in listed.items():
        existing = _existing(aws, region, tag, service, kind, [arn.id for arn in arns])
        yield from (arn for arn in arns if arn.id in existing)


def _tagged(aws: Aws, region: str, tag: Tag) -> list[Arn]:
    tag_filters = [{"Key": tag[0], "Values": [tag[1]]}]
    service, method = "resourcegroupstaggingapi", "get_resources"
    items = aws.pages(service, region, method, "ResourceTagMappingList", TagFilters=tag_filters)
    return [parse_arn(each["ResourceARN"]) for each in items]


def parse_arn(text: str) -> Arn:
    """An ARN such as arn:aws:ec2:us-east-1:123456789012:volume/vol-1 or ...:log-group:/aws/eks/NAME/cluster."""
    service, resource = text.split(":")[2], text.split(":", 5)[5]
    slash, colon = resource.find("/"), resource.find(":")
    end = min((each for each in (slash, colon) if each >= 0), default=-1)
    kind, id = (resource[:end], resource[end + 1 :]) if end >= 0 else ("", resource)
    return Arn(text, service, kind, id.removesuffix(":*"))


def _existing(aws: Aws, region: str, tag: Tag, service: str, kind: str, ids: Ids) -> set[str]:
    if service == "ec2" and kind in _EC2:
        return _in_ec2(aws, region, tag, _EC2[kind])
    if service == "eks":
        return {id for id in ids if cluster_exists(aws, region, id.partition("/")[0])}
    check = _CHECKS.get((service, kind))
    return check(aws, region, ids) if check else set(ids)


def _in_ec2(aws: Aws, region: str, tag: Tag, listing: _Listing) -> set[str]:
    filters = [tag_filter(*tag)]
    if listing.states:
        name, states = listing.states
        filters.append({"Name": name, "Values": list(states)})
    arguments = {listing.filters: filters}
    if listing.paged:
        items = aws.pages("ec2", region, listing.method, listing.key, **arguments)
    else:
        items = aws.call("ec2", region, listing.method, **arguments)[listing.key]
    if listing.key == "Reservations":
        items = [machine for each in items for machine in each["Instances"]]
    return {each[key] for each in items for key in listing.ids}


def _listed(service: str, method: str, key: str, id: str) -> Callable[[Aws, str, Ids], set[str]]:
    """What finds the resources of a kind by a call that lists all of them."""
    return lambda aws, region, ids: {each[id] for each in aws.pages(service, region, method, key)}


def _log_groups(aws: Aws, region: str, ids: Ids) -> set[str]:
    return {name for id in ids for name in log_group.with_prefix(aws, region, id)}


def _keys(aws: Aws, region: str, ids: Ids) -> set[str]:
    return {id for id in ids if key_exists(aws, region, id)}


def _none(aws: Aws, region: str, ids: Ids) -> set[str]:
    return set()


_CHECKS: Mapping[tuple[str, str], Callable[[Aws, str, Ids], set[str]]] = {
    # AWS Backup copies a file system's tags to its recovery points, which are to outlive it; `down` names them itself.
    ("backup", "recovery-point"): _none,
    ("ecr", "repository"): _listed("ecr", "describe_repositories", "repositories", "repositoryName"),
    ("elasticfilesystem", "access-point"): _listed("efs", "describe_access_points", "AccessPoints", "AccessPointId"),
    ("elasticfilesystem", "file-system"): _listed("efs", "describe_file_systems", "FileSystems", "FileSystemId"),
    ("kms", "key"): _keys,
    ("logs", "log-group"): _log_groups,
}
_EC2: Mapping[str, _Listing] = {
    "elastic-ip": _Listing("describe_addresses", "Addresses", ("AllocationId",), paged=False),
    "instance": _Listing(
        "describe_instances",
        "Reservations",
        ("InstanceId",),
        ("instance-state-name", ("pending", "running", "stopping", "stopped")),
    ),
    "internet-gateway": _Listing("describe_internet_gateways", "InternetGateways", ("InternetGatewayId",)),
    "launch-template": _Listing("describe_launch_templates", "LaunchTemplates", ("LaunchTemplateId",)),
    "natgateway": _Listing(
        "describe_nat_gateways", "NatGateways", ("NatGatewayId",), ("state", ("pending", "available")), filters="Filter"
    ),
    "network-interface": _Listing("describe_network_interfaces", "NetworkInterfaces", ("NetworkInterfaceId",)),
    "placement-group": _Listing(
        "describe_placement_groups",
        "PlacementGroups",
        ("GroupId", "GroupName"),
        ("state", ("pending", "available")),
        paged=False,
    ),
    "route-table": _Listing("describe_route_tables", "RouteTables", ("RouteTableId",)),
    "security-group": _Listing("describe_security_groups", "SecurityGroups", ("GroupId",)),
    "security-group-rule": _Listing("describe_security_group_rules", "SecurityGroupRules", ("SecurityGroupRuleId",)),
    "spot-instances-request": _Listing(
        "describe_spot_instance_requests",
        "SpotInstanceRequests",
        ("SpotInstanceRequestId",),
        ("state", ("open", "active")),
    ),
    "subnet": _Listing("describe_subnets", "Subnets", ("SubnetId",)),
    "volume": _Listing(
        "describe_volumes", "Volumes", ("VolumeId",), ("status", ("creating", "available", "in-use", "error"))
    ),
    "vpc": _Listing("describe_vpcs", "Vpcs", ("VpcId",)),
    "vpc-endpoint": _Listing(
        "describe_vpc_endpoints",
        "VpcEndpoints",
        ("VpcEndpointId",),
        ("vpc-endpoint-state", ("pending", "pendingAcceptance", "available", "rejected", "failed")),
    ),
}
