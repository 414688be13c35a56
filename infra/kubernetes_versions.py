"""The Kubernetes versions that an environment may run, their support by EKS, and the version of a node group."""

from collections.abc import Mapping
from datetime import date

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
# When EKS's standard support ends, by minor version; extended support ends a year later. Of 1.37 it was not known in
# November 2026: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
STANDARD_SUPPORT_ENDS: Mapping[int, date] = {
    31: date(2025, 11, 26),
    32: date(2026, 3, 23),
    33: date(2026, 7, 29),
    34: date(2026, 12, 2),
    35: date(2027, 3, 27),
    36: date(2027, 8, 2),
}
# Dollars per hour for a control plane in standard, and in extended support: https://aws.amazon.com/eks/pricing/
CONTROL_PLANE, EXTENDED_SUPPORT = 0.10, 0.60
_NOTICE = 60  # days before the end, as AWS announces it


def minor(version: str) -> int:
    """The minor version as a number: 35 of `1.35`."""
    return int(version.split(".")[1])


def node_version(ami_release: str | None, control_plane: str) -> str:
    """The Kubernetes version of nodes: that of their AMI release (`1.35.2-20260901`), else the control plane's."""
    return ".".join(ami_release.split(".")[:2]) if ami_release else control_plane


def support_warning(version: str, today: date) -> str | None:
    """What EKS does to a control plane of that version, once its standard support has ended or soon will; else None."""
    ends = STANDARD_SUPPORT_ENDS.get(minor(version))
    if ends is None or (ends - today).days > _NOTICE:
        return None
    if today <= ends:
        return f"standard support of {version} ends on {ends}: then EKS upgrades the control plane by itself"
    if today <= (extended := ends.replace(year=ends.year + 1)):
        price = f"${EXTENDED_SUPPORT:.2f} an hour for the control plane in place of ${CONTROL_PLANE:.2f}"
        return f"standard support of {version} ended on {ends}: EKS bills {price}, or upgrades it by itself at any time"
    return (
        f"EKS's support of {version} ended on {extended}: it creates no cluster with it, and upgrades those that exist"
    )


def supported(today: date) -> str:
    """The version to use now: the default, or the newest one where the default's standard support has ended."""
    return f"1.{DEFAULT if today <= STANDARD_SUPPORT_ENDS[DEFAULT] else NEWEST}"
