"""A group of like machines in one zone: placement group, launch template, managed node group, autoscaler tags."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_aws import autoscaling, ec2, eks, vpc

from infra import kubernetes_versions, names
from infra.instance_types import InstanceType
from infra.launch import Machine, launch_template
from infra.node_replacement import NodeProtection
from infra.scaling_groups import ScalingGroup, scaling_group_name
from infra.settings import BLOCK, Group
from infra.sizes import Sizes, size_tag

_CAPACITY_TYPES = {"spot": "SPOT", "on-demand": "ON_DEMAND", BLOCK: "CAPACITY_BLOCK"}
_TEMPLATE_TAG = "k8s.io/cluster-autoscaler/node-template"


@dataclass(frozen=True)
class Host:
    """The cluster and network of a group's nodes; `after` has to exist before the first node can join."""

    region: str
    environment: str
    cluster_name: pulumi.Input[str]
    cluster_version: str
    node_role_arn: pulumi.Input[str]
    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    security_group_id: pulumi.Input[str]
    after: Sequence[pulumi.Resource]


@dataclass(frozen=True)
class NodeGroupArgs:
    """The settings of a group, its instance type, and its cluster and network."""

    group: Group
    kind: InstanceType
    host: Host
    tags: Mapping[str, str]


def labels(group: Group, kind: InstanceType) -> dict[str, str]:
    """The labels of a group's nodes.

    The autoscaler recognizes GPU nodes by the accelerator label, NVIDIA's charts by `nvidia.com/gpu.present`.
    """
    result = {names.LABEL_ROLE: "gpu" if kind.gpus else "work", names.LABEL_GROUP: group.name}
    if kind.gpus:
        result[names.LABEL_GPU_PRESENT] = "true"
        result[names.LABEL_ACCELERATOR] = re.sub(r"[^a-z0-9]+", "-", (kind.gpu_model or "gpu").lower())
    return result


def taint_key(kind: InstanceType) -> str:
    """The taint that keeps all other pods off a group's nodes."""
    return names.TAINT_GPU if kind.gpus else names.TAINT_WORK


def template_tags(group: Group, kind: InstanceType) -> dict[str, str]:
    """The Auto Scaling group tags by which the autoscaler knows a group that has no nodes."""
    tags = {f"{_TEMPLATE_TAG}/label/{key}": value for key, value in labels(group, kind).items()}
    tags[f"{_TEMPLATE_TAG}/taint/{taint_key(kind)}"] = f"{names.TAINT_VALUE}:NoSchedule"
    if kind.gpus:
        tags[f"{_TEMPLATE_TAG}/resources/{names.GPU_RESOURCE}"] = str(kind.gpus)
    if group.efa:
        tags[f"{_TEMPLATE_TAG}/resources/{names.EFA_RESOURCE}"] = str(kind.efa_interfaces)
    return tags


class NodeGroup(pulumi.ComponentResource):
    """A group of nodes, as one or more managed node groups within EKS's quota; provides `node_groups`."""

    def __init__(self, name: str, args: NodeGroupArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:nodes:NodeGroup", name, None, opts)
        self._name, self._args, self._child = name, args, pulumi.ResourceOptions(parent=self)
        template = launch_template(name, self._machine(), args.tags, self._child)
        stem = name.removesuffix(args.group.name)
        self.node_groups: list[eks.NodeGroup] = []
        for group, (low, high) in names.eks_groups(args.group).items():
            node_group = self._node_group(stem + group, template, Sizes(low, high), self._scaling(group))
            scaling_group = node_group.resources.apply(scaling_group_name)
            self._tag_scaling_group(stem + group, scaling_group)
            size_tag(stem + group, self._scaling(group), Sizes(low, high), scaling_group, self)
            self.node_groups.append(node_group)
        self.register_outputs({"node_groups": [node_group.id for node_group in self.node_groups]})

    def _scaling(self, group: str) -> ScalingGroup:
        return ScalingGroup(self._args.host.region, group)

    def _machine(self) -> Machine:
        group = self._args.group
        placement_group = None
        if group.has_placement_group:
            placement_group = ec2.PlacementGroup(
                self._name, strategy="cluster", tags=dict(self._args.tags), opts=self._child
            ).name
        return Machine(
            group.disk_gib,
            throughput_mibps=group.root_disk_throughput(self._args.kind),
            join_local_disks=group.uses_local_disks(self._args.kind),
            placement_group=placement_group,
            network_interfaces=self._efa_interfaces() if group.efa else None,
            capacity_block=(group.reservation, group.type) if group.reservation else None,
        )

    def _efa_interfaces(self) -> list[ec2.LaunchTemplateNetworkInterfaceArgs]:
        """An interface on each network card with EFA, in the cluster's group and in one that lets EFA peers talk.

        Only the first has an address: the others are for EFA alone, as AWS recommends
        (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
        """
        groups = [self._args.host.security_group_id, self._efa_peers()]
        first = "interface" if self._args.kind.first_efa_card else "efa"
        return [
            ec2.LaunchTemplateNetworkInterfaceArgs(
                device_index=min(card, 1),
                network_card_index=card,
                interface_type="efa-only" if card else first,
                delete_on_termination="true",
                security_groups=groups,
            )
            for card in self._args.kind.network_cards(efa=True)
        ]

    def _efa_peers(self) -> pulumi.Output[str]:
        """A security group whose members reach each other on every protocol, as EFA requires in both directions."""
        name, tags = f"{self._name}-efa", dict(self._args.tags)
        group = ec2.SecurityGroup(
            name,
            vpc_id=self._args.host.vpc_id,
            description="EFA between nodes of one group",
            tags=tags,
            opts=self._child,
        )
        for rule in (vpc.SecurityGroupIngressRule, vpc.SecurityGroupEgressRule):
            rule(
                name,
                security_group_id=group.id,
                referenced_security_group_id=group.id,
                ip_protocol="-1",
                description="EFA peers",
                tags=tags,
                opts=self._child,
            )
        return group.id

    def _node_group(
        self, name: str, template: ec2.LaunchTemplate, sizes: Sizes, scaling: ScalingGroup
    ) -> eks.NodeGroup:
        group, kind, host = self._args.group, self._args.kind, self._args.host
        return eks.NodeGroup(
            name,
            cluster_name=host.cluster_name,
            node_role_arn=host.node_role_arn,
            subnet_ids=[host.subnet_id],
            instance_types=None if group.reservation else [group.type],  # of the template: EKS takes one of the two
            ami_type=kind.ami_type,
            capacity_type=_CAPACITY_TYPES[group.market],
            version=kubernetes_versions.node_version(group.ami_release, host.cluster_version),
            release_version=group.ami_release,
            launch_template=eks.NodeGroupLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str)),
            scaling_config=eks.NodeGroupScalingConfigArgs(
                desired_size=sizes.min, min_size=sizes.min, max_size=sizes.max
            ),
            # Old nodes are removed before new ones start: there is rarely quota and capacity for both.
            update_config=eks.NodeGroupUpdateConfigArgs(max_unavailable_percentage=100, update_strategy="MINIMAL"),
            labels=labels(group, kind),
            taints=[eks.NodeGroupTaintArgs(key=taint_key(kind), value=names.TAINT_VALUE, effect="NO_SCHEDULE")],
            node_repair_config=eks.NodeGroupNodeRepairConfigArgs(enabled=True),
            tags=dict(self._args.tags),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=list(host.after),
                # An update would also send the state's outdated desired size: sizes.py sets the sizes instead.
                ignore_changes=["scalingConfig"],
                custom_timeouts=pulumi.CustomTimeouts(delete="30m"),
                hooks=NodeProtection(name, host.environment, host.cluster_version, scaling).hooks(),
            ),
        )

    def _tag_scaling_group(self, name: str, scaling_group: pulumi.Output[str]) -> None:
        """A managed node group does not pass its tags to its Auto Scaling group, so each is set here."""
        for key, value in template_tags(self._args.group, self._args.kind).items():
            autoscaling.Tag(
                f"{name}-{key.removeprefix(_TEMPLATE_TAG + '/')}",
                autoscaling_group_name=scaling_group,
                tag=autoscaling.TagTagArgs(key=key, value=value, propagate_at_launch=False),
                opts=self._child,
            )
