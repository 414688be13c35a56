"""The sources of all that a cluster pulls: charts and images with their versions, each replaceable by a mirror."""

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict


class Chart(BaseModel):
    """A Helm chart; `repository` is None for an OCI chart, whose address is `chart` itself.

    `image` and `digest` name the chart's main image where it is pinned beside the chart.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    chart: str
    version: str
    repository: str | None = None
    image: str | None = None
    tag: str | None = None
    digest: str | None = None


CHARTS: Mapping[str, Chart] = {
    "jobset": Chart(
        chart="oci://registry.k8s.io/jobset/charts/jobset",
        version="0.10.1",
        image="registry.k8s.io/jobset/jobset",
        tag="v0.10.1",
    ),
    "kueue": Chart(
        chart="oci://registry.k8s.io/kueue/charts/kueue",
        version="0.14.0",
        image="registry.k8s.io/kueue/kueue",
        tag="v0.14.0",
    ),
    "cluster-autoscaler": Chart(
        chart="cluster-autoscaler",
        repository="https://kubernetes.github.io/autoscaler",
        version="9.59.0",
        image="registry.k8s.io/autoscaling/cluster-autoscaler",
        tag="v1.35.0",
        digest="sha256:2fc9433dd3b47baef0e68d6b1110b770a3c93db10c7bead4c5bc6cb21c72b875",
    ),
    "nvidia-device-plugin": Chart(
        chart="nvidia-device-plugin",
        repository="https://nvidia.github.io/k8s-device-plugin",
        version="0.18.2",
        image="nvcr.io/nvidia/k8s-device-plugin",
        tag="v0.18.2",
    ),
    "dcgm-exporter": Chart(
        chart="dcgm-exporter",
        repository="https://nvidia.github.io/dcgm-exporter/helm-charts",
        version="4.8.3",
    ),
    "efa-device-plugin": Chart(
        chart="aws-efa-k8s-device-plugin",
        repository="https://aws.github.io/eks-charts",
        version="v0.5.29",
    ),
}


class Sources(BaseModel):
    """Every source by name, mirrors applied."""

    model_config = ConfigDict(frozen=True)

    charts: Mapping[str, Chart]

    @classmethod
    def with_mirrors(cls, overrides: Mapping[str, Mapping[str, str]]) -> Self:
        """The sources with some fields replaced, as in the setting `sources`."""
        charts = {name: Chart(**chart.model_dump() | dict(overrides.get(name, {}))) for name, chart in CHARTS.items()}
        return cls(charts=charts)
