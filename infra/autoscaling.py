"""Cluster Autoscaler: adds nodes while jobs wait for them, and removes idle ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_aws import eks, iam

from infra import policies
from infra.charts import ON_SYSTEM_NODES, SYSTEM_NAMESPACE, Installation, image_values, release
from infra.kubernetes_component import KubernetesComponent
from infra.sources import Chart

_ACCOUNT = "cluster-autoscaler"


@dataclass(frozen=True)
class AutoscalerArgs:
    """The cluster, and its EKS node groups in the order of preference."""

    cluster_name: pulumi.Input[str]
    environment: str
    region: str
    groups: Sequence[str]
    chart: Chart
    tags: Mapping[str, str]


def priorities(environment: str, groups: Sequence[str]) -> str:
    """The priority expander's table, by patterns of EKS's Auto Scaling group names; the first is preferred.

    A name ends with Pulumi's seven digits and EKS's UUID, so that `g5` matches neither `g5-2` nor `g5-abcdef0`.
    """
    lines = [
        f"{max(100, len(groups)) - index}:\n  - ^eks-{environment}-{group}-[0-9a-f]{{7}}-[0-9a-f]{{8}}.*"
        for index, group in enumerate(groups)
    ]
    return "\n".join(lines) + "\n"


def values(args: AutoscalerArgs) -> dict[str, Any]:
    """The chart's values."""
    return {
        "image": image_values(args.chart),
        "cloudProvider": "aws",
        "awsRegion": args.region,
        "autoDiscovery": {"clusterName": args.environment},
        "fullnameOverride": _ACCOUNT,
        "rbac": {"serviceAccount": {"create": True, "name": _ACCOUNT}},
        "nodeSelector": dict(ON_SYSTEM_NODES),
        "priorityClassName": "system-cluster-critical",
        "expanderPriorities": priorities(args.environment, args.groups),
        "extraArgs": {
            "expander": "priority,least-waste",
            "max-node-provision-time": "10m",
            "node-info-cache-expire-time": "10m",
            "scale-down-unneeded-time": "3m",  # less than the first pause of a run that gave nodes back
            "scale-down-delay-after-add": "5m",
            "skip-nodes-with-system-pods": False,
            "skip-nodes-with-local-storage": False,
            "balance-similar-node-groups": False,
        },
    }


class Autoscaler(KubernetesComponent):
    """The autoscaler with a role that resizes this cluster's groups only."""

    def __init__(self, name: str, args: AutoscalerArgs, opts: pulumi.ResourceOptions):
        super().__init__("Autoscaler", name, opts)
        aws_options = pulumi.ResourceOptions(parent=self)
        role = iam.Role(
            f"{name}-autoscaler",
            assume_role_policy=json.dumps(policies.trust_pod_identity()),
            tags=dict(args.tags),
            opts=aws_options,
        )
        policy = iam.RolePolicy(
            f"{name}-autoscaler",
            role=role.name,
            policy=json.dumps(policies.cluster_autoscaler(args.environment)),
            opts=aws_options,
        )
        identity = eks.PodIdentityAssociation(
            f"{name}-autoscaler",
            cluster_name=args.cluster_name,
            namespace=SYSTEM_NAMESPACE,
            service_account=_ACCOUNT,
            role_arn=role.arn,
            tags=dict(args.tags),
            opts=aws_options,
        )
        # A pod gets the role only if the association exists before it starts.
        installation = Installation(_ACCOUNT, args.chart, SYSTEM_NAMESPACE, values(args))
        release(name, installation, self.child(policy, identity))
        self.register_outputs({})
