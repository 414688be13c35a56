"""The Kubernetes versions that an environment may run, and the version of a node group."""

from collections.abc import Mapping
from datetime import date

# When EKS's standard support ends, as of 2026-11-22; `spotmpi upgrade` and `spotmpi doctor` query EKS itself. The date
# of 1.36 was not known then. https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
STANDARD_SUPPORT_ENDS: Mapping[str, date | None] = {
    "1.31": date(2025, 11, 26),
    "1.32": date(2026, 3, 23),
    "1.33": date(2026, 7, 29),
    "1.34": date(2026, 12, 2),
    "1.35": date(2027, 3, 27),
    "1.36": None,
}
# A kubelet may be this many minor versions older than the API server, and never newer:
# https://kubernetes.io/releases/version-skew-policy/#kubelet
KUBELET_SKEW = 3


def minor(version: str) -> int:
    """The minor version as a number: 35 of `1.35`."""
    return int(version.split(".")[1])


def node_version(ami_release: str | None, control_plane: str) -> str:
    """The Kubernetes version of nodes: that of their AMI release (`1.35.2-20260901`), else the control plane's."""
    return ".".join(ami_release.split(".")[:2]) if ami_release else control_plane
