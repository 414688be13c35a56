"""The Kubernetes versions that an environment may run, and the version of a node group."""

# The minor versions of EKS for which it has AMI releases, as of 2026-11-19:
# https://github.com/awslabs/amazon-eks-ami/releases. It adds about three a year and refuses those that it lacks,
# so environments need not wait for a new release of spotmpi.
OLDEST, NEWEST = 31, 37
# Of new environments: tried by others for some months, and in standard support for a year.
DEFAULT = NEWEST - 1
LATER = 3  # minor versions beyond the newest one that are accepted
# A kubelet may be this many minor versions older than the API server, and never newer:
# https://kubernetes.io/releases/version-skew-policy/#kubelet
KUBELET_SKEW = 3


def minor(version: str) -> int:
    """The minor version as a number: 35 of `1.35`."""
    return int(version.split(".")[1])


def node_version(ami_release: str | None, control_plane: str) -> str:
    """The Kubernetes version of nodes: that of their AMI release (`1.35.2-20260901`), else the control plane's."""
    return ".".join(ami_release.split(".")[:2]) if ami_release else control_plane
