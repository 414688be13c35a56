"""Kueue: a job is admitted when all of it fits into its team's quota, and never in part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import yaml
from pulumi_kubernetes import apiextensions, meta

from infra.charts import ON_SYSTEM_NODES, Installation, image_values, release
from infra.kubernetes_component import KubernetesComponent
from infra.quotas import FLAVOR, cluster_queue
from infra.settings import Group, Team
from infra.sources import Chart

_API = "kueue.x-k8s.io/v1beta1"


@dataclass(frozen=True)
class QueueingArgs:
    """The teams, and the groups whose nodes they share."""

    teams: Sequence[Team]
    groups: Sequence[Group]
    namespace: pulumi.Input[str]
    chart: Chart


def values(chart: Chart) -> dict[str, Any]:
    """The chart's values: only the kinds of jobs that an environment has are managed."""
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
    }
    manager = {"image": image_values(chart) | {"pullPolicy": "IfNotPresent"}}
    return {
        "controllerManager": {"nodeSelector": dict(ON_SYSTEM_NODES), "manager": manager},
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(config, sort_keys=True)},
    }


class Queueing(KubernetesComponent):
    """Kueue on the system nodes, with one ClusterQueue and one LocalQueue for each team."""

    def __init__(self, name: str, args: QueueingArgs, opts: pulumi.ResourceOptions):
        super().__init__("Queueing", name, opts)
        self._name = name
        kueue = release(name, Installation("kueue", args.chart, "kueue-system", values(args.chart)), self.child())
        flavor = self._object("ResourceFlavor", FLAVOR, {}, kueue)
        for team in args.teams:
            shares = self._object("ClusterQueue", team.name, cluster_queue(name, team, args.groups), flavor)
            self._object("LocalQueue", team.name, {"clusterQueue": team.name}, shares, args.namespace)
        self.register_outputs({})

    def _object(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        after: pulumi.Resource,
        namespace: pulumi.Input[str] | None = None,
    ) -> apiextensions.CustomResource:
        return apiextensions.CustomResource(
            f"{self._name}-{kind.lower()}-{name}",
            api_version=_API,
            kind=kind,
            metadata=meta.v1.ObjectMetaArgs(name=name, namespace=namespace),
            spec=dict(spec),
            opts=self.child(after),
        )
