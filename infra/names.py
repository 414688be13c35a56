"""Derived names: every name, label and taint that an environment gives to something."""

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

# What a tag has to say where GPUs are bought on demand; the guardrails look for it.
TAG_ON_DEMAND = "spotmpi:on-demand-gpus"

# The sizes of a node group as the settings have them, on its Auto Scaling group;
# jobs/spotmpi/environments/node_group_sizes.py reads it too.
TAG_SIZES = "spotmpi:nodes"
# The environment variable that allows an update to replace nodes that run.
REPLACE_NODES = "SPOTMPI_REPLACE_NODES"

VOLUME_CLAIM = "runs"
SSH_SECRET = "mpi-ssh"
SERVICE_ACCOUNT = "runs"
USERS_GROUP = "spotmpi:users"
UID = 1000
GID = 1000

# EKS's default quota of nodes per managed node group.
NODES_PER_PIECE = 450
# Pulumi adds a hyphen and seven hexadecimal digits to a name that it makes unique.
_SUFFIX = 8


def pieces(group: Group) -> dict[str, tuple[int, int]]:
    """The EKS node groups that make up a group: name to (min, max), each within EKS's quota.

    The first keeps the group's name and fills up first, so that growing past the quota adds a piece and moves none.
    """
    made: dict[str, tuple[int, int]] = {}
    low, high = group.min, group.max
    while high > 0:
        name = group.name if not made else f"{group.name}-{len(made) + 1}"
        made[name] = (min(low, NODES_PER_PIECE), min(high, NODES_PER_PIECE))
        low, high = max(0, low - NODES_PER_PIECE), high - NODES_PER_PIECE
    return made


def is_label(name: str) -> bool:
    """Whether a name may be part of DNS names and AWS names alike."""
    return re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is not None


def data_stack(settings: Settings) -> str:
    """The stack that holds the kept storage of this one."""
    return f"{settings.stack}-data"


def repository(settings: Settings, image: str) -> str:
    """The ECR repository of an image."""
    return f"{settings.name}/{image}"


def too_long(settings: Settings) -> Iterator[tuple[str, int, str]]:
    """Names that AWS would refuse for their length: (name, limit, what it names)."""
    stem = settings.name
    limited = [
        # pulumi-eks names the control plane's role <cluster>-eksRole-role.
        (f"{stem}-eksRole-role", 64 - _SUFFIX, "IAM role"),
        *((f"{stem}-{name}", 63 - _SUFFIX, "EKS node group") for group in settings.groups for name in pieces(group)),
    ]
    yield from (entry for entry in limited if len(entry[0]) > entry[1])
