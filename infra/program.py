"""The program: which components an environment has, and the inputs of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import pulumi

from infra import addresses, exports, fixed_settings, names
from infra.accelerators import AcceleratorArgs, Accelerators
from infra.access import Access, AccessArgs
from infra.autoscaling import Autoscaler, AutoscalerArgs
from infra.budget import BudgetAlarm
from infra.checks import find_warnings
from infra.ci_access import CiAccess, set_role_boundary
from infra.cluster import Cluster, ClusterArgs
from infra.gpu_nodes import Host, NodeGroup, NodeGroupArgs
from infra.instance_types import catalog
from infra.jobset import JobSet
from infra.mpi_ssh import MpiSsh
from infra.network import Network, NetworkArgs
from infra.providers import aws_provider, kubernetes_provider
from infra.queueing import Queueing, QueueingArgs
from infra.registry import Registry, RegistryArgs
from infra.settings import Group, Settings
from infra.sources import Sources
from infra.storage import (
    FileSystemIds,
    Mount,
    MountArgs,
    Volume,
    VolumeArgs,
    file_system_ids,
    mount_options,
    mount_zones,
)


def build(settings: Settings, today: date) -> None:
    """Declare every resource of the settings, and export the outputs that `spotmpi` reads; *today* is for warnings."""
    for warning in find_warnings(settings, today):
        pulumi.log.warn(warning)
    if settings.boundary:
        set_role_boundary(settings.boundary)
    aws = pulumi.ResourceOptions(providers=[aws_provider(settings)])
    if settings.kind == "account":
        # Roles for workflows, which outlive the environments that they build and destroy; `ci` was checked.
        assert settings.ci is not None
        exports.roles(CiAccess(settings.name, settings.ci, settings.all_tags, aws))
        return
    storage = file_system_ids(settings, aws)
    if settings.kind == "data":
        exports.data(settings, storage)
        return
    machines = _machines(settings, storage, aws)
    _cluster_objects(settings, storage, machines)
    if settings.budget:
        BudgetAlarm(settings.name, settings.region, settings.budget, settings.all_tags, aws)
    registry = Registry(settings.name, RegistryArgs(settings.images, settings.all_tags), aws)
    exports.environment(settings, machines.cluster.arn, registry.urls, storage)


@dataclass(frozen=True)
class _Machines:
    cluster: Cluster
    groups: list[NodeGroup]
    mount: Mount
    aws: pulumi.ResourceOptions


def _machines(settings: Settings, storage: FileSystemIds, aws: pulumi.ResourceOptions) -> _Machines:
    """Network, control plane, nodes, and the mount targets of the storage."""
    name, tags = settings.name, settings.all_tags
    network = _network(settings, aws)
    cluster = Cluster(
        name,
        ClusterArgs(
            settings=settings.cluster,
            region=settings.region,
            access=settings.access,
            vpc_id=network.vpc_id,
            subnet_ids=network.subnet_ids,
            node_subnet_id=network.node_subnet_ids[settings.zone],
            tags=tags,
        ),
        aws,
    )
    mount = Mount(
        name,
        MountArgs(
            file_system_id=storage.file_system_id,
            vpc_id=network.vpc_id,
            subnet_ids={zone: network.node_subnet_ids[zone] for zone in mount_zones(settings)},
            cluster_security_group_id=cluster.security_group_id,
            tags=tags,
        ),
        aws,
    )
    # Nodes are destroyed first: an NFS mount without its target hangs, and with it the pods that use it.
    after = [*cluster.node_role_ready, *mount.ready]
    return _Machines(cluster, _node_groups(settings, network, cluster, after, aws), mount, aws)


def _network(settings: Settings, aws: pulumi.ResourceOptions) -> Network:
    cidr = settings.network.cidr
    args = NetworkArgs(
        vpc_cidr=cidr,
        subnets=addresses.plan(cidr),
        region=settings.region,
        zones=settings.zones,
        second_zone=settings.other_zone,
        private=settings.network.private,
        fixed=fixed_settings.of_network(settings),
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
    """The groups of the settings in each of their zones, all in one cluster."""

    def node_group(group: Group) -> NodeGroup:
        host = Host(
            region=settings.region,
            environment=settings.name,
            cluster_name=cluster.name,
            cluster_version=settings.cluster.version,
            node_role_arn=cluster.node_role_arn,
            vpc_id=network.vpc_id,
            subnet_id=network.node_subnet_ids[group.zones[0]],
            security_group_id=cluster.security_group_id,
            after=after,
        )
        args = NodeGroupArgs(group, catalog()[group.type], host, _group_tags(group, settings.all_tags))
        return NodeGroup(f"{settings.name}-{group.name}", args, aws)

    return [node_group(group) for group in settings.zone_groups]


def _group_tags(group: Group, tags: dict[str, str]) -> dict[str, str]:
    """The tags of a group; for on-demand GPUs with the one that the guardrails look for."""
    on_demand_gpus = group.market == "on-demand" and catalog()[group.type].gpus > 0
    return {**tags, names.TAG_ON_DEMAND: "requested"} if on_demand_gpus else tags


def _cluster_objects(settings: Settings, storage: FileSystemIds, machines: _Machines) -> None:
    """Controllers, device plugins, and the namespace of the runs."""
    name, charts = settings.name, Sources.for_cluster(settings.cluster.version, settings.sources).charts
    cluster, aws = machines.cluster, machines.aws
    nodes = [node_group for group in machines.groups for node_group in group.node_groups]
    kubernetes = kubernetes_provider(name, cluster.kubeconfig, [*cluster.ready, *nodes, *machines.mount.ready])
    in_cluster = pulumi.ResourceOptions.merge(
        aws, pulumi.ResourceOptions(providers=[kubernetes], deleted_with=cluster.control_plane)
    )
    jobset = JobSet(name, charts["jobset"], in_cluster)
    Autoscaler(
        name,
        AutoscalerArgs(
            cluster_name=cluster.name,
            environment=name,
            region=settings.region,
            groups=[name for group in settings.zone_groups for name in names.eks_groups(group)],
            chart=charts["cluster-autoscaler"],
            tags=settings.all_tags,
        ),
        in_cluster,
    )
    Accelerators(
        name,
        AcceleratorArgs(
            gpus=any(catalog()[group.type].gpus for group in settings.groups),
            efa_types=sorted({group.type for group in settings.groups if group.efa}),
            dcgm=settings.accelerators.dcgm,
            charts=charts,
        ),
        in_cluster,
    )
    access = Access(
        name, AccessArgs(settings.namespace, settings.network.https_out, settings.queueing.enabled), in_cluster
    )
    if settings.queueing.enabled:
        teams, groups = settings.queueing.teams, settings.queued_groups
        Queueing(
            name, QueueingArgs(teams, groups, access.namespace, charts["kueue"]), _after(in_cluster, jobset.installed)
        )
    Volume(name, VolumeArgs(mount_options(settings), storage, access.namespace), in_cluster)
    MpiSsh(name, access.namespace, in_cluster)


def _after(opts: pulumi.ResourceOptions, *dependencies: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(dependencies)))
