"""The EKS control plane, its access entries, the system nodes and the add-ons."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_eks
from pulumi_aws import cloudwatch, eks, iam, kms

from infra import kubernetes_versions, names, policies
from infra.addresses import WARM_POD_ADDRESSES
from infra.instance_types import catalog
from infra.launch import Machine, launch_template
from infra.login import with_login
from infra.node_replacement import version_hook
from infra.scaling_groups import ScalingGroup, scaling_group_name
from infra.settings import Cluster as ClusterSettings
from infra.sizes import Sizes, size_tag

_ADMIN_POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
_LOG_DAYS = 14
_BEFORE_NODES: Mapping[str, Any] = {
    "vpc-cni": {
        "enableNetworkPolicy": "true",
        # addresses.py assumes these numbers.
        "env": {"MINIMUM_IP_TARGET": str(WARM_POD_ADDRESSES), "WARM_IP_TARGET": "1"},
    },
    "kube-proxy": None,
    "eks-pod-identity-agent": None,
}
_ON_SYSTEM_NODES = {"nodeSelector": {names.LABEL_ROLE: "system"}}


@dataclass(frozen=True)
class ClusterArgs:
    """The inputs of a control plane: `subnet_ids` in two zones, `node_subnet_id` for the system nodes."""

    settings: ClusterSettings
    region: str
    access: Sequence[str]
    vpc_id: pulumi.Input[str]
    subnet_ids: Sequence[pulumi.Input[str]]
    node_subnet_id: pulumi.Input[str]
    tags: Mapping[str, str]


class Cluster(pulumi.ComponentResource):
    """A cluster that is ready for pods.

    Provides `name` (known in a preview, waits for the control plane), `security_group_id` (which every node carries),
    `kubeconfig`, `arn`, `node_role_arn`, and `control_plane` and `ready` as things to wait for.
    """

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:cluster:Cluster", name, None, opts)
        self._name, self._args, self._child = name, args, pulumi.ResourceOptions(parent=self)
        self.control_plane = self._control_plane()
        # The literal name, dependent on the control plane: known in a preview, and not used before the cluster exists.
        self.name: pulumi.Output[str] = self.control_plane.urn.apply(lambda _: name)
        self.security_group_id: pulumi.Output[str] = self.control_plane.cluster_security_group_id
        kubeconfig = self.control_plane.kubeconfig_json.apply(lambda text: with_login(text, args.region, name))
        self.kubeconfig: pulumi.Output[str] = pulumi.Output[str].secret(kubeconfig)
        early = [self._addon(addon, values) for addon, values in _BEFORE_NODES.items()]
        role, attached = self._node_role()
        self.node_role_arn: pulumi.Output[str] = role.arn
        self.arn: pulumi.Output[str] = role.arn.apply(lambda arn: _arn(arn, args.region, name))
        self.node_role_ready: list[pulumi.Resource] = [*attached, *early]
        nodes = self._system_nodes()
        late = [self._addon(addon, values, after=[nodes]) for addon, values in self._late_addons().items()]
        self.ready: list[pulumi.Resource] = [*early, nodes, *late]
        self.register_outputs(
            {
                "name": self.name,
                "arn": self.arn,
                "security_group_id": self.security_group_id,
                "node_role_arn": self.node_role_arn,
            }
        )

    def _control_plane(self) -> pulumi_eks.Cluster:
        args, settings = self._args, self._args.settings
        key = self._secrets_key() if settings.encrypt_secrets else None
        return pulumi_eks.Cluster(
            self._name,
            name=self._name,
            version=settings.version,
            vpc_id=args.vpc_id,
            subnet_ids=list(args.subnet_ids),
            authentication_mode=pulumi_eks.AuthenticationMode.API,
            access_entries=self._access_entries(),
            endpoint_public_access=True,
            endpoint_private_access=True,
            public_access_cidrs=list(args.access),
            enabled_cluster_log_types=list(settings.logs),
            encryption_config_key_arn=key.arn if key else None,
            upgrade_policy={"support_type": "STANDARD"},
            skip_default_node_group=True,
            skip_default_security_groups=True,
            create_instance_role=False,
            create_oidc_provider=False,
            bootstrap_self_managed_addons=False,
            use_default_vpc_cni=True,
            coredns_addon_options={"enabled": False},
            kube_proxy_addon_options={"enabled": False},
            tags=dict(args.tags),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._log_group()]),
        )

    def _log_group(self) -> cloudwatch.LogGroup:
        """EKS would create it by itself, keep logs for ever, and leave it behind when the cluster is deleted."""
        return cloudwatch.LogGroup(
            f"{self._name}-control-plane",
            name=f"/aws/eks/{self._name}/cluster",
            retention_in_days=_LOG_DAYS,
            tags=dict(self._args.tags),
            opts=self._child,
        )

    def _secrets_key(self) -> kms.Key:
        return kms.Key(
            f"{self._name}-secrets",
            description=f"Kubernetes Secrets of {self._name}",
            enable_key_rotation=True,
            deletion_window_in_days=7,
            tags=dict(self._args.tags),
            opts=self._child,
        )

    def _access_entries(self) -> dict[str, pulumi_eks.AccessEntryArgs]:
        settings = self._args.settings
        everywhere = eks.AccessPolicyAssociationAccessScopeArgs(type="cluster")
        admin = pulumi_eks.AccessPolicyAssociationArgs(policy_arn=_ADMIN_POLICY, access_scope=everywhere)
        entries = {
            names.access_entry(arn): pulumi_eks.AccessEntryArgs(principal_arn=arn, access_policies={"admin": admin})
            for arn in settings.admins
        }
        for arn in settings.users:
            groups = [names.USERS_GROUP]
            entries[names.access_entry(arn)] = pulumi_eks.AccessEntryArgs(principal_arn=arn, kubernetes_groups=groups)
        return entries

    def _node_role(self) -> tuple[iam.Role, list[iam.RolePolicyAttachment]]:
        role = iam.Role(
            f"{self._name}-nodes",
            assume_role_policy=json.dumps(policies.trust_ec2()),
            tags=dict(self._args.tags),
            opts=self._child,
        )
        attach = {**policies.NODE_POLICIES, **({"ssm": policies.SSM_POLICY} if self._args.settings.ssm else {})}
        attached = [
            iam.RolePolicyAttachment(f"{self._name}-nodes-{what}", role=role.name, policy_arn=arn, opts=self._child)
            for what, arn in attach.items()
        ]
        return role, attached

    def _system_nodes(self) -> eks.NodeGroup:
        system, tags = self._args.settings.system, self._args.tags
        name, sizes = f"{self._name}-system", Sizes(system.nodes, system.nodes + 1)
        template = launch_template(name, Machine(system.disk_gib), tags, self._child)
        nodes = eks.NodeGroup(
            name,
            cluster_name=self.name,
            node_role_arn=self.node_role_arn,
            subnet_ids=[self._args.node_subnet_id],
            instance_types=[system.type],
            ami_type=catalog()[system.type].ami_type,
            capacity_type="ON_DEMAND",
            version=kubernetes_versions.node_version(system.ami_release, self._args.settings.version),
            release_version=system.ami_release,
            launch_template=eks.NodeGroupLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str)),
            scaling_config=eks.NodeGroupScalingConfigArgs(
                desired_size=sizes.min, min_size=sizes.min, max_size=sizes.max
            ),
            # EKS's default starts two nodes first, for which a new account has no quota; one node alone needs them.
            update_config=eks.NodeGroupUpdateConfigArgs(
                max_unavailable=1, update_strategy="MINIMAL" if system.nodes > 1 else "DEFAULT"
            ),
            labels={names.LABEL_ROLE: "system"},
            node_repair_config=eks.NodeGroupNodeRepairConfigArgs(enabled=True),
            tags=dict(tags),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[self.control_plane, *self.node_role_ready],
                ignore_changes=["scalingConfig"],  # the autoscaler moves this group too; see sizes.py
                custom_timeouts=pulumi.CustomTimeouts(delete="30m"),
                hooks=pulumi.ResourceHookBinding(
                    before_create=[version_hook(name, "system", self._args.settings.version)]
                ),
            ),
        )
        scaling = ScalingGroup(self._args.region, "system")
        size_tag(name, scaling, sizes, nodes.resources.apply(scaling_group_name), self)
        return nodes

    def _late_addons(self) -> dict[str, Any]:
        return {
            "coredns": _ON_SYSTEM_NODES,
            "metrics-server": _ON_SYSTEM_NODES,
            "aws-efs-csi-driver": {"controller": _ON_SYSTEM_NODES},
            "eks-node-monitoring-agent": None,
        }

    def _addon(self, addon: str, values: Any, after: Sequence[pulumi.Resource] = ()) -> eks.Addon:
        identity = None
        if addon == "aws-efs-csi-driver":
            association, attached = self._efs_driver_identity()
            identity, after = [association], [*after, attached]
        return eks.Addon(
            f"{self._name}-{addon}",
            cluster_name=self.name,
            addon_name=addon,
            addon_version=self._args.settings.addon_versions.get(addon),
            configuration_values=json.dumps(values) if values else None,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            pod_identity_associations=identity,
            tags=dict(self._args.tags),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.control_plane, *after]),
        )

    def _efs_driver_identity(self) -> tuple[eks.AddonPodIdentityAssociationArgs, iam.RolePolicyAttachment]:
        role = iam.Role(
            f"{self._name}-efs-csi",
            assume_role_policy=json.dumps(policies.trust_pod_identity()),
            tags=dict(self._args.tags),
            opts=self._child,
        )
        attached = iam.RolePolicyAttachment(
            f"{self._name}-efs-csi", role=role.name, policy_arn=policies.EFS_DRIVER_POLICY, opts=self._child
        )
        association = eks.AddonPodIdentityAssociationArgs(role_arn=role.arn, service_account="efs-csi-controller-sa")
        return association, attached


def _arn(role: str, region: str, cluster: str) -> str:
    """The ARN of a cluster in the partition and account of a role's ARN; the component has none as an output."""
    _, partition, _, _, account, *_ = role.split(":")
    return f"arn:{partition}:eks:{region}:{account}:cluster/{cluster}"
