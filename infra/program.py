"""The program as a table of contents: which parts an environment has, and what each is given."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra import addresses, exports, kept, names
from infra.accelerators import AcceleratorArgs, Accelerators
from infra.access import Access, AccessArgs
from infra.autoscaling import Autoscaler, AutoscalerArgs
from infra.budget import BudgetAlarm
from infra.checks import warnings_of
from infra.ci_access import CiAccess
from infra.cluster import Cluster, ClusterArgs
from infra.gpu_nodes import Host, NodeGroup, NodeGroupArgs
from infra.instance_types import known
from infra.jobset import JobSet
from infra.mpi_ssh import MpiSsh
from infra.network import Network, NetworkArgs
from infra.providers import aws_provider, kubernetes_provider
from infra.queueing import Queueing, QueueingArgs
from infra.registry import Registry, RegistryArgs
from infra.role_boundary import bound_roles
from infra.settings import Group, Settings
from infra.sources import Sources
from infra.storage import FileSystemIds, Mount, MountArgs, Volume, VolumeArgs


def build(settings: Settings) -> None:
    """Make everything that the settings ask for, and export the contract with `jobs`."""
    for warning in warnings_of(settings):
        pulumi.log.warn(warning)
    if settings.boundary:
        bound_roles(settings.boundary)
    aws = pulumi.ResourceOptions(providers=[aws_provider(settings)])
    storage = kept.file_system(settings, aws)
    if settings.kind == "data":
        exports.data(settings, storage)
        return
    machines = _machines(settings, storage, aws)
    _inside(settings, storage, machines)
    _around(settings, aws)
    registry = Registry(settings.name, RegistryArgs(settings.images, settings.all_tags), aws)
    exports.environment(settings, registry.urls, storage)


def _around(settings: Settings, aws: pulumi.ResourceOptions) -> None:
    """What is there for people and workflows rather than for runs: alarms and roles, where set."""
    if settings.budget:
        BudgetAlarm(settings.name, settings.budget, settings.all_tags, aws)
    if settings.ci:
        roles = CiAccess(settings.name, settings.ci, settings.all_tags, aws)
        exports.roles(roles)


@dataclass(frozen=True)
class _Machines:
    cluster: Cluster
    groups: list[NodeGroup]
    mount: Mount
    aws: pulumi.ResourceOptions


def _machines(settings: Settings, storage: FileSystemIds, aws: pulumi.ResourceOptions) -> _Machines:
    """What AWS bills for: network, control plane, nodes, and the way to the storage."""
    name, tags = settings.name, settings.all_tags
    network = _network(settings, aws)
    cluster = Cluster(
        name,
        ClusterArgs(
            settings=settings.cluster,
            access=settings.access,
            vpc_id=network.vpc_id,
            subnet_ids=network.subnet_ids,
            node_subnet_id=network.node_subnet_id,
            tags=tags,
        ),
        aws,
    )
    mount = Mount(
        name,
        MountArgs(
            file_system_id=storage.file_system_id,
            vpc_id=network.vpc_id,
            subnet_id=network.node_subnet_id,
            cluster_security_group_id=cluster.security_group_id,
            tags=tags,
        ),
        aws,
    )
    # On the way down nodes go first: an NFS mount without its target hangs, and the pods that wait for it with it.
    after = [*cluster.node_role_ready, *mount.ready]
    return _Machines(cluster, _node_groups(settings, network, cluster, after, aws), mount, aws)


def _network(settings: Settings, aws: pulumi.ResourceOptions) -> Network:
    cidr = settings.network.cidr
    args = NetworkArgs(
        vpc_cidr=cidr,
        subnets=addresses.plan(cidr),
        region=settings.region,
        zone=settings.zone,
        second_zone=settings.other_zone,
        private=settings.network.private,
        tags=settings.all_tags,
    )
    return Network(settings.name, args, aws)


def _node_groups(
    settings: Settings,
    network: Network,
    cluster: Cluster,
    after: Sequence[pulumi.Resource],
    aws: pulumi.ResourceOptions,
) -> list[NodeGroup]:
    """Each group of the settings, on one host cluster and in its one zone."""
    host = Host(
        region=settings.region,
        cluster_name=cluster.name,
        cluster_version=settings.cluster.version,
        node_role_arn=cluster.node_role_arn,
        vpc_id=network.vpc_id,
        subnet_id=network.node_subnet_id,
        security_group_id=cluster.security_group_id,
        after=after,
    )

    def made(group: Group) -> NodeGroup:
        args = NodeGroupArgs(group, known()[group.type], host, _group_tags(group, settings.all_tags))
        return NodeGroup(f"{settings.name}-{group.name}", args, aws)

    return [made(group) for group in settings.groups]


def _group_tags(group: Group, tags: dict[str, str]) -> dict[str, str]:
    """On-demand GPUs are said twice in the settings, and told to the guardrails."""
    dear = group.market == "on-demand" and known()[group.type].gpus > 0
    return {**tags, names.TAG_ON_DEMAND: "said"} if dear else tags


def _inside(settings: Settings, storage: FileSystemIds, machines: _Machines) -> None:
    """What lives in Kubernetes: controllers, device plugins, and the namespace of the runs."""
    name, charts = settings.name, Sources.with_mirrors(settings.sources).charts
    cluster, aws = machines.cluster, machines.aws
    nodes = [made for group in machines.groups for made in group.node_groups]
    kubernetes = kubernetes_provider(name, cluster.kubeconfig, [*cluster.ready, *nodes, *machines.mount.ready])
    inside = pulumi.ResourceOptions.merge(
        aws, pulumi.ResourceOptions(providers=[kubernetes], deleted_with=cluster.control_plane)
    )
    jobset = JobSet(name, charts["jobset"], inside)
    Autoscaler(
        name,
        AutoscalerArgs(
            cluster_name=cluster.name,
            environment=name,
            region=settings.region,
            groups=[group.name for group in settings.groups],
            chart=charts["cluster-autoscaler"],
            tags=settings.all_tags,
        ),
        inside,
    )
    Accelerators(
        name,
        AcceleratorArgs(
            gpus=any(known()[group.type].gpus for group in settings.groups),
            efa_types=sorted({group.type for group in settings.groups if group.efa}),
            dcgm=settings.accelerators.dcgm,
            charts=charts,
        ),
        inside,
    )
    access = Access(name, AccessArgs(settings.namespace, settings.network.https_out, settings.queueing.enabled), inside)
    if settings.queueing.enabled:
        teams, groups = settings.queueing.teams, settings.groups
        Queueing(name, QueueingArgs(teams, groups, access.namespace, charts["kueue"]), _after(inside, jobset.installed))
    Volume(name, VolumeArgs(settings.storage, storage, access.namespace), inside)
    MpiSsh(name, access.namespace, inside)


def _after(opts: pulumi.ResourceOptions, *waited_for: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(waited_for)))
