"""The sources of all that a cluster pulls: charts and images with their versions, each replaceable by a mirror."""

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict

from infra.kubernetes_versions import minor


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
        version="0.12.0",
        image="registry.k8s.io/jobset/jobset",
        tag="v0.12.0",
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


# The autoscaler simulates the scheduler of its own minor version, so each cluster gets that of its own: Cluster
# Autoscaler's README, "Releases". The newest patches that registry.k8s.io had in November 2026.
_AUTOSCALERS: Mapping[int, tuple[str, str | None]] = {
    31: ("v1.31.1", None),
    32: ("v1.32.5", None),
    33: ("v1.33.5", None),
    34: ("v1.34.4", None),
    35: ("v1.35.0", "sha256:2fc9433dd3b47baef0e68d6b1110b770a3c93db10c7bead4c5bc6cb21c72b875"),
    36: ("v1.36.1", None),
}


def _chart(name: str, kubernetes: str, override: Mapping[str, str]) -> Chart:
    """A chart for a Kubernetes version, mirror applied; a digest belongs to its tag, so another tag drops it."""
    fields = CHARTS[name].model_dump()
    if name == "cluster-autoscaler":
        fields["tag"], fields["digest"] = _AUTOSCALERS[min(minor(kubernetes), max(_AUTOSCALERS))]
    if "tag" in override:
        fields["digest"] = None
    return Chart(**fields | dict(override))


class Sources(BaseModel):
    """Every source by name, mirrors applied."""

    model_config = ConfigDict(frozen=True)

    charts: Mapping[str, Chart]

    @classmethod
    def for_cluster(cls, kubernetes: str, overrides: Mapping[str, Mapping[str, str]]) -> Self:
        """The sources for a Kubernetes version, with some fields replaced, as in the setting `sources`."""
        return cls(charts={name: _chart(name, kubernetes, overrides.get(name, {})) for name in CHARTS})
