"""Every name, label, tag and taint of an environment."""

import hashlib
import re
from collections.abc import Iterator

from infra.settings import Group, Settings

LABEL_ROLE = "spotmpi.dev/role"
LABEL_GROUP = "spotmpi.dev/group"
LABEL_ACCELERATOR = "k8s.amazonaws.com/accelerator"
GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"
LABEL_GPU_PRESENT = "nvidia.com/gpu.present"
TAINT_GPU = "nvidia.com/gpu"
TAINT_WORK = "spotmpi.dev/work"
TAINT_VALUE = "present"

# The tag that marks on-demand GPUs as intended; the guardrails look for it.
TAG_ON_DEMAND = "spotmpi:on-demand-gpus"

# The tag with the sizes of a node group in the settings, on its Auto Scaling group;
# jobs/spotmpi/environments/node_group_sizes.py reads it too.
TAG_SIZES = "spotmpi:nodes"
# The tag with the settings that a built environment keeps, on its network and on its file system.
TAG_FIXED = "spotmpi:fixed"
# The environment variable that allows an update to replace running nodes.
REPLACE_NODES = "SPOTMPI_REPLACE_NODES"

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"

# The EKS add-ons of every environment.
ADDONS = (
    *("vpc-cni", "kube-proxy", "eks-pod-identity-agent", "coredns", "metrics-server", "aws-efs-csi-driver"),
    "eks-node-monitoring-agent",
)

VOLUME_CLAIM = "runs"
SSH_SECRET = "mpi-ssh"
SERVICE_ACCOUNT = "runs"
PLACEMENT_ACCOUNT = "spotmpi-placement"  # of the controllers that move a run to another node group
LABEL_PURPOSE = "spotmpi.dev/purpose"  # of pods that are not nodes of a run
PLACEMENT = "placement"
USERS_GROUP = "spotmpi:users"
UID = 1000
GID = 1000

# EKS's default quota of nodes per managed node group.
NODES_PER_EKS_GROUP = 450
# Pulumi adds a hyphen and seven hexadecimal digits to a name that it makes unique.
_SUFFIX = 8


def eks_groups(group: Group) -> dict[str, tuple[int, int]]:
    """The EKS node groups of a group: name to (min, max), each within EKS's quota of nodes.

    The first has the group's name and is filled first, so that growth past the quota adds a group and changes none.
    """
    groups: dict[str, tuple[int, int]] = {}
    low, high = group.min, group.max
    while high > 0:
        name = group.name if not groups else f"{group.name}-{len(groups) + 1}"
        groups[name] = (min(low, NODES_PER_EKS_GROUP), min(high, NODES_PER_EKS_GROUP))
        low, high = max(0, low - NODES_PER_EKS_GROUP), high - NODES_PER_EKS_GROUP
    return groups


def access_entry(arn: str) -> str:
    """The name of the access entry of a role or user; one of its own, so that the order of the settings is free."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", arn.split(":", 5)[5])
    return f"{readable}-{hashlib.sha256(arn.encode()).hexdigest()[:7]}"


def is_label(name: str) -> bool:
    """Whether a name may be part of DNS names and AWS names alike."""
    return re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is not None


def data_stack(settings: Settings) -> str:
    """The stack that holds the persistent storage of this one."""
    return f"{settings.stack}-data"


def overlong_names(settings: Settings) -> Iterator[tuple[str, int, str]]:
    """The names that exceed a limit of AWS: (name, limit, kind of resource)."""
    stem = settings.name
    limited = [
        # pulumi-eks names the control plane's role <cluster>-eksRole-role.
        (f"{stem}-eksRole-role", 64 - _SUFFIX, "IAM role"),
        *(
            (f"{stem}-{name}", 63 - _SUFFIX, "EKS node group")
            for group in settings.zone_groups
            for name in eks_groups(group)
        ),
    ]
    yield from (entry for entry in limited if len(entry[0]) > entry[1])
