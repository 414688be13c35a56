"""The kinds of AWS resources that an environment has, or can leave behind: one entry each, which all commands read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spotmpi.aws.account import IAM_PREFIXES, Aws
from spotmpi.aws.errors import CallError
from spotmpi.core.pulumi import resources_of
from spotmpi.environments.resource_inventory import ResourceInventory, Resources

TAG = "spotmpi:environment"
# The CNI tags its interfaces with the cluster's name and with the instance that uses them.
CNI_CLUSTER, CNI_INSTANCE = "cluster.k8s.amazonaws.com/name", "node.k8s.amazonaws.com/instance_id"
# eksctl tags its stacks with the name of the cluster, in its current and in its first spelling.
_EKSCTL_CLUSTER = ("alpha.eksctl.io/cluster-name", "eksctl.cluster.k8s.io/v1alpha1/cluster-name")
_EBS_DRIVER = "ebs.csi.aws.com"
# Statuses in AWS's models: of clusters, node groups and add-ons in EKS, `LifeCycleState` in EFS, `State` in EC2.
DELETED, DELETING, FAILED = "DELETED", "DELETING", "FAILED"
_STATUS = ("status", "LifeCycleState", "State", "KeyState")
_ABSENT = {"ResourceNotFoundException", "NotFoundException", "RepositoryNotFoundException", "FileSystemNotFound"}
_ABSENT |= {"MountTargetNotFound", "AccessPointNotFound", "NatGatewayNotFound"}
_ABSENT |= {"InvalidVpcID.NotFound", "InvalidVpcEndpointId.NotFound"}
Tag = tuple[str, str]  # its key and value


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource: the name of one, its service (of boto3), its kind in ARNs, and how that lists and deletes it.

    `describe` answers with resources under `items`, each with its id under `id`, which is the parameter of requests.
    """

    name: str
    service: str
    resource: str
    describe: str
    items: str
    id: str
    delete: str = ""
    options: str = ""  # of the command for a deletion
    several: str = ""  # the name of several, if that is not the name with an s
    by: str = ""  # the parameter of `describe` that names one, if that is not the id, or in EC2 a list of ids
    filters: str = "Filters"  # the parameter for EC2's filters
    gone: tuple[str, ...] = ()  # statuses of one that bills nothing any more, besides those of a deletion
    quota: tuple[str, str] | None = None  # service and code of the quota of which each environment needs one
    type: str = ""  # in Pulumi
    # What `up` does where AWS has it no longer, if it looks for it: refuse, since all else was in it, or build it anew,
    # for which what failed is deleted, unless it may hold data.
    loss: Literal["", "refuse", "rebuild", "rebuild unless failed"] = ""
    # Of what can outlive an environment: what finds the ids of those that did, and why that matters.
    find: Callable[[ResourceKind, Aws, ResourceInventory], Iterable[str]] | None = None
    why: str = ""
    own_name: str = ""  # of what has the environment's name, with {} for that; with a slash at its end, the beginning

    @property
    def arn(self) -> tuple[str, str]:
        """Service and kind as ARNs have them."""
        return IAM_PREFIXES.get(self.service, self.service), self.resource

    @property
    def right(self) -> str:
        """The action of IAM that its description needs."""
        return f"{self.arn[0]}:{self.describe.title().replace('_', '')}"

    @property
    def names(self) -> str:
        """The name of several, by which their ids are recorded."""
        return self.several or f"{self.name}s"

    def deletion(self, id: str, region: str) -> str:
        """The command that deletes one of them."""
        named = " ".join(f"--{_kebab(key)} {name}" for key, name in self._names(self.delete, id).items())
        what = f"{self.service} {self.delete.replace('_', '-')}{self.options and f' {self.options}'}"
        return f"aws {what} {named} --region {region}"

    def remove(self, aws: Aws, region: str, id: str, refusals: Collection[str] = _ABSENT) -> bool:
        """Delete one; returns False where AWS answers with one of the *refusals*, as if it is gone already."""
        answer = aws.find(self.service, region, self.delete, refusals, **self._arguments(self.delete, id))
        return answer is not None

    def left_over(self, aws: Aws, inventory: ResourceInventory) -> list[str]:
        """The ids of those that outlived an environment, in order."""
        return sorted(set(self.find(self, aws, inventory) if self.find else ()))

    def status(self, aws: Aws, region: str, id: str) -> str:
        """What AWS says of one, in capitals: DELETED where it does not exist, empty for a kind without a status."""
        answer = aws.find(self.service, region, self.describe, _ABSENT, **self._arguments(self.describe, id))
        items = answer[self.items] if answer else []
        named = [each for each in items if each[self.id] == id] if isinstance(items, list) else [items]
        return _status(named[0]) if named else DELETED

    def existing(self, aws: Aws, region: str, ids: Iterable[str], tag: Tag | None = None) -> set[str]:
        """Those of *ids*, which have that *tag*, that exist; what is being deleted does not count."""
        if self.service == "ec2" and tag:  # in one call
            return self.filtered(aws, region, tag_filter(*tag))
        return {id for id in ids if self._is_left(self.status(aws, region, id))}

    def list(self, aws: Aws, region: str, **arguments: Any) -> list[dict[str, Any]]:
        """Those that the service lists for these arguments."""
        items = aws.pages(self.service, region, self.describe, self.items, **arguments)
        return [machine for each in items for machine in each["Instances"]] if self.items == "Reservations" else items

    def filtered(self, aws: Aws, region: str, *filters: Mapping[str, Any]) -> set[str]:
        """The ids of those in EC2 that match all *filters*; what is being deleted does not count."""
        found = self.list(aws, region, **{self.filters: list(filters)})
        return {each[self.id] for each in found if self._is_left(_status(each))}

    def _is_left(self, status: str) -> bool:
        return status not in (DELETED, DELETING, *self.gone)

    def name_of(self, id: str) -> str:
        """The name in an id of Pulumi, in which the name of its cluster comes first."""
        return id.partition(":")[2] if self._in_cluster else id

    @property
    def _in_cluster(self) -> bool:
        return self.service == "eks" and self.id != "name"

    def _names(self, method: str, id: str) -> dict[str, str]:
        """What names one in a request. Where the method's name is a plural, EC2 takes a list."""
        plural = "s" if self.service == "ec2" and re.search("[^s]s$", method) else ""
        key = self.by if self.by and method == self.describe else self.id + plural
        return {"clusterName": id.partition(":")[0], key: self.name_of(id)} if self._in_cluster else {key: id}

    def _arguments(self, method: str, id: str) -> dict[str, Any]:
        return {key: [name] if key[-1] == "s" else name for key, name in self._names(method, id).items()}


def _status(description: Mapping[str, Any]) -> str:
    status = next((description[key] for key in _STATUS if key in description), "")
    return str(status["Name"] if isinstance(status, dict) else status).upper()


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def tags_of(environment: str) -> tuple[Tag, ...]:
    """The tags of an environment's resources, by spotmpi and by Kubernetes in its cluster of the same name."""
    return ((TAG, environment), (f"kubernetes.io/cluster/{environment}", "owned"))


def tag_filter(key: str, value: str) -> dict[str, Any]:
    """The filter of EC2's lists for resources with a tag."""
    return _filter(f"tag:{key}", value)


def _filter(name: str, *values: str) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _listed(kind: ResourceKind, aws: Aws, inventory: ResourceInventory) -> Iterator[str]:
    """Those with one of the environment's tags, with its name, or recorded."""
    tags = {*tags_of(inventory.name), *((key, inventory.name) for key in _EKSCTL_CLUSTER)}
    name = kind.own_name.format(inventory.name)
    for each in kind.list(aws, inventory.region):
        id, own = each[kind.id], {(tag["Key"], tag["Value"]) for tag in each.get("Tags", ())}
        is_named = bool(name) and (id.startswith(name) if name[-1] == "/" else id == name)
        if tags & own or is_named or id in inventory.of(kind.names):
            yield id


def _mount_targets(kind: ResourceKind, aws: Aws, inventory: ResourceInventory) -> Iterator[str]:
    """Those of the environment's file systems, and the recorded ones: persistent storage belongs to another stack."""
    queries = [{FILE_SYSTEM.id: system} for system in _listed(FILE_SYSTEM, aws, inventory)]
    queries += [{kind.id: target} for target in sorted(inventory.of(kind.names))]
    for query in queries:
        try:
            yield from (each[kind.id] for each in kind.list(aws, inventory.region, **query))
        except CallError as error:
            if error.code not in _ABSENT:
                raise


def networks_of(aws: Aws, inventory: ResourceInventory) -> list[str]:
    """The ids of the environment's VPCs: tagged or recorded."""
    tagged = NETWORK.filtered(aws, inventory.region, tag_filter(TAG, inventory.name))
    return sorted(tagged | inventory.of(NETWORK.names))


def _interfaces(kind: ResourceKind, aws: Aws, inventory: ResourceInventory) -> set[str]:
    # The CNI's interfaces have none of our tags, but are in our network or carry the cluster's name.
    queries = [[tag_filter(CNI_CLUSTER, inventory.name)]]
    if networks := networks_of(aws, inventory):
        queries.append([_filter("vpc-id", *networks), _filter("tag-key", CNI_INSTANCE)])
    return _in_ec2(kind, aws, inventory, *queries)


def _in_ec2(kind: ResourceKind, aws: Aws, inventory: ResourceInventory, *queries: Sequence[dict[str, Any]]) -> set[str]:
    """Those with one of the environment's tags, recorded, or found by one of the *queries*."""
    known = sorted(inventory.of(kind.names))
    recorded = [[_filter(_kebab(kind.id), *known)]] if known else []
    tagged = [[tag_filter(*tag)] for tag in tags_of(inventory.name)]
    return {id for query in (*tagged, *recorded, *queries) for id in kind.filtered(aws, inventory.region, *query)}


def _log_groups(kind: ResourceKind, aws: Aws, inventory: ResourceInventory) -> Iterator[str]:
    known = inventory.of(kind.names)
    for prefix in {f"/aws/eks/{inventory.name}/", f"/aws/containerinsights/{inventory.name}/"} | known:
        names = [each[kind.id] for each in kind.list(aws, inventory.region, **{kind.by: prefix})]
        yield from (name for name in names if name == prefix or prefix.endswith("/"))


def _keys(kind: ResourceKind, aws: Aws, inventory: ResourceInventory) -> set[str]:
    """The recorded keys; keys have no name to find them by."""
    return kind.existing(aws, inventory.region, inventory.of(kind.names))


def log_group_of(cluster: str) -> str:
    """The log group of a control plane, which EKS recreates, without tags, when log lines arrive after its deletion.

    EKS's service-linked role does so whatever the permissions of the cluster's role (terraform-aws-eks#2446, #2763); a
    new environment of the same name then can't create its own.
    """
    return f"/aws/eks/{cluster}/cluster"


def cluster_exists(aws: Aws, region: str, name: str) -> bool:
    """Whether EKS has a cluster of that name, including one that is being deleted."""
    return CLUSTER.status(aws, region, name) != DELETED


_BILLED_BY_GB = "they bill by the GB"


def _kind(name: str, service: str, resource: str, **fields: Any) -> ResourceKind:
    """A kind whose methods and keys have its name in ARNs, such as launch-template, unless *fields* have others."""
    words, camel = resource.replace("-", "_"), resource.title().replace("-", "")
    usual = {"describe": f"describe_{words}s", "items": f"{camel}s", "id": f"{camel}Id", "delete": f"delete_{words}"}
    return ResourceKind(name, service, resource, **{**usual, **fields})


CLUSTER = ResourceKind(
    *("cluster", "eks", "cluster", "describe_cluster", "cluster", "name"),
    type="aws:eks/cluster:Cluster",
    loss="refuse",
)
NETWORK = _kind("VPC", "ec2", "vpc", quota=("vpc", "L-F678F1CE"), type="aws:ec2/vpc:Vpc", loss="refuse")
FILE_SYSTEM = _kind(
    *("file system", "efs", "file-system"),
    type="aws:efs/fileSystem:FileSystem",
    loss="rebuild unless failed",
    find=_listed,
    why=_BILLED_BY_GB,
)
MOUNT_TARGET = _kind(
    *("mount target", "efs", "mount-target"),
    type="aws:efs/mountTarget:MountTarget",
    loss="rebuild",
    find=_mount_targets,
    why="they block the deletion of the file system and a subnet",
)
INTERFACE = _kind(
    *("network interface", "ec2", "network-interface"),
    find=_interfaces,
    why="they block the deletion of subnets and security groups",
)
VOLUME = _kind("volume", "ec2", "volume", find=_in_ec2, why=_BILLED_BY_GB)
LOG_GROUP = ResourceKind(
    *("log group", "logs", "log-group", "describe_log_groups", "logGroups", "logGroupName", "delete_log_group"),
    by="logGroupNamePrefix",
    type="aws:cloudwatch/logGroup:LogGroup",
    find=_log_groups,
    why="they bill by the GB, and a new environment can't create its own",
)
GATEWAY = _kind("internet gateway", "ec2", "internet-gateway", quota=("vpc", "L-A4707A72"))
ADDRESS = ResourceKind(
    *("Elastic IP address", "ec2", "elastic-ip", "describe_addresses", "Addresses", "AllocationId", "release_address"),
    several="Elastic IP addresses",
    quota=("ec2", "L-0263D0A3"),
)
SECURITY_GROUP = _kind("security group", "ec2", "security-group", id="GroupId")
RESOURCE_KINDS = (
    _kind(
        *("CloudFormation stack", "cloudformation", "stack"),
        id="StackName",
        find=_listed,
        own_name="{}",
        why="they hold resources of a cluster of that name that another tool created",
    ),
    FILE_SYSTEM,
    MOUNT_TARGET,
    INTERFACE,
    VOLUME,
    LOG_GROUP,
    ResourceKind(
        *("key", "kms", "key", "describe_key", "KeyMetadata", "KeyId", "schedule_key_deletion"),
        options="--pending-window-in-days 7",
        gone=("PENDINGDELETION", "PENDINGREPLICADELETION"),
        type="aws:kms/key:Key",
        find=_keys,
        why="each is billed monthly",
    ),
    ResourceKind(
        *("image repository", "ecr", "repository", "describe_repositories", "repositories", "repositoryName"),
        *("delete_repository", "--force", "image repositories"),
        by="repositoryNames",
        type="aws:ecr/repository:Repository",
        find=_listed,
        own_name="{}/",
        why=_BILLED_BY_GB,
    ),
    CLUSTER,
    ResourceKind(
        *("node group", "eks", "nodegroup", "describe_nodegroup", "nodegroup", "nodegroupName", "delete_nodegroup"),
        type="aws:eks/nodeGroup:NodeGroup",
        loss="rebuild",
    ),
    ResourceKind(
        *("add-on", "eks", "addon", "describe_addon", "addon", "addonName", "delete_addon"),
        type="aws:eks/addon:Addon",
        loss="rebuild",
    ),
    ResourceKind(
        *("access of", "eks", "access-entry", "describe_access_entry", "accessEntry", "principalArn"),
        type="aws:eks/accessEntry:AccessEntry",
        loss="rebuild",
    ),
    _kind("access point", "efs", "access-point", type="aws:efs/accessPoint:AccessPoint", loss="rebuild"),
    NETWORK,
    SECURITY_GROUP,
    _kind(
        *("NAT gateway", "ec2", "natgateway"),
        **{"describe": "describe_nat_gateways", "items": "NatGateways", "id": "NatGatewayId"},
        delete="delete_nat_gateway",
        filters="Filter",
        gone=(FAILED,),  # for an hour, until AWS deletes it
        type="aws:ec2/natGateway:NatGateway",
        loss="rebuild",
    ),
    _kind(
        *("network endpoint", "ec2", "vpc-endpoint"),
        delete="delete_vpc_endpoints",
        type="aws:ec2/vpcEndpoint:VpcEndpoint",
        loss="rebuild",
    ),
    _kind(
        *("machine", "ec2", "instance"),
        items="Reservations",
        delete="terminate_instances",
        gone=("SHUTTING-DOWN", "TERMINATED"),
    ),
    _kind("placement group", "ec2", "placement-group", id="GroupName"),
    _kind("subnet", "ec2", "subnet"),
    GATEWAY,
    _kind("launch template", "ec2", "launch-template"),
    _kind("route table", "ec2", "route-table"),
    _kind("security group rule", "ec2", "security-group-rule", delete=""),
    ADDRESS,
    ResourceKind(
        *("spot request", "ec2", "spot-instances-request", "describe_spot_instance_requests", "SpotInstanceRequests"),
        *("SpotInstanceRequestId", "cancel_spot_instance_requests"),
        gone=(FAILED, "CANCELLED", "CLOSED"),
    ),
)
LEFT_OVER = tuple(kind for kind in RESOURCE_KINDS if kind.find)
BY_TYPE: Mapping[str, ResourceKind] = {kind.type: kind for kind in RESOURCE_KINDS if kind.type}
_RECORDED = {NETWORK.type, *(kind.type for kind in LEFT_OVER)} - {""}


def resources_in_state(state: Mapping[str, Any] | None) -> Resources:
    """The kinds and ids in the output of `pulumi stack export` of what down finds by its recorded id."""
    for each in resources_of(state):
        if each.get("type") in _RECORDED and each.get("id"):
            yield BY_TYPE[each["type"]].names, str(each["id"])


def holds_storage(state: Mapping[str, Any] | None) -> bool:
    """Whether a stack, by `pulumi stack export`, is the persistent storage of another one, and not an environment."""
    kinds = {kind for kind, _ in resources_in_state(state)}
    return FILE_SYSTEM.names in kinds and NETWORK.names not in kinds


def ebs_volumes(persistent_volumes: Iterable[Mapping[str, Any]]) -> Resources:
    """The EBS volumes behind a cluster's PersistentVolumes."""
    for each in persistent_volumes:
        disk = each["spec"].get("csi") or {}
        if disk.get("driver") == _EBS_DRIVER:
            yield VOLUME.names, str(disk["volumeHandle"])
