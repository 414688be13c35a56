"""Helm charts: one release of one pinned chart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_kubernetes.helm import v3 as helm

from infra import names
from infra.sources import Chart

SYSTEM_NAMESPACE = "kube-system"
ON_SYSTEM_NODES: Mapping[str, str] = {names.LABEL_ROLE: "system"}
ON_GPU_NODES: Mapping[str, str] = {names.LABEL_ROLE: "gpu"}
TOLERATE_GPU = {"key": names.TAINT_GPU, "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Installation:
    """A chart with its values, the name of its release and its namespace."""

    release: str
    chart: Chart
    namespace: str
    values: Mapping[str, Any]


def release(environment: str, installation: Installation, opts: pulumi.ResourceOptions) -> helm.Release:
    """A release that waits for its pods, and is rolled back when they don't become ready."""
    chart = installation.chart
    return helm.Release(
        f"{environment}-{installation.release}",
        name=installation.release,
        chart=chart.chart,
        version=chart.version,
        repository_opts=helm.RepositoryOptsArgs(repo=chart.repository) if chart.repository else None,
        namespace=installation.namespace,
        create_namespace=installation.namespace != SYSTEM_NAMESPACE,
        atomic=True,
        cleanup_on_fail=True,
        timeout=600,
        values=dict(installation.values),
        opts=opts,
    )


def image_values(chart: Chart) -> dict[str, str]:
    """The `image` part of a chart's values: repository, and a tag that carries the digest where there is one."""
    if chart.image is None or chart.tag is None:
        return {}
    tag = f"{chart.tag}@{chart.digest}" if chart.digest else chart.tag
    return {"repository": chart.image, "tag": tag}
