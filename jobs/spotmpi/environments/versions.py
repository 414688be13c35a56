"""Versions of an environment's control plane, add-ons and nodes: running, offered by EKS, and pinned in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotmpi.aws import eks
from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.kubernetes_versions import minor
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.environments.resource_kinds import TAG
from spotmpi.environments.stack_file import SYSTEM, Pins, StackFile, order, with_pins, write_stack

# Where EKS publishes its newest AMI release of a type: https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html
_AMI_PARAMETER = "/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{kind}/recommended/release_version"
_AMI_KINDS = {
    **{"AL2023_x86_64_STANDARD": "x86_64/standard", "AL2023_x86_64_NVIDIA": "x86_64/nvidia"},
    **{"AL2023_ARM_64_STANDARD": "arm64/standard", "AL2023_ARM_64_NVIDIA": "arm64/nvidia"},
}


@dataclass(frozen=True)
class NodeGroupVersion:
    """What the nodes of one EKS node group run; `group` is its name in the stack's file, None for other groups."""

    name: str
    group: str | None
    version: str
    ami_release: str
    ami_type: str
    status: str


@dataclass(frozen=True)
class RunningVersions:
    """What a cluster runs: its control plane, the environment's own add-ons by name, and every node group."""

    control_plane: str
    status: str
    addons: Mapping[str, str]
    node_groups: tuple[NodeGroupVersion, ...]

    @property
    def newest_releases(self) -> dict[str, str]:
        """The AMI release of each node group of the file; of several EKS node groups, the newest that one runs."""
        releases: dict[str, str] = {}
        for each in self.node_groups:
            if each.group:
                releases[each.group] = max(releases.get(each.group, each.ami_release), each.ami_release, key=order)
        return releases


def next_minor(version: str) -> str:
    """The only version that EKS updates a control plane to: `1.36` for `1.35`."""
    return f"1.{minor(version) + 1}"


def running(aws: Aws, region: str, cluster: str) -> RunningVersions:
    """The versions that *cluster* runs now; CallError."""
    description = aws.call("eks", region, "describe_cluster", name=cluster)["cluster"]
    addons = {}
    for name in aws.pages("eks", region, "list_addons", "addons", clusterName=cluster):
        addon = aws.call("eks", region, "describe_addon", clusterName=cluster, addonName=name)["addon"]
        if addon.get("tags", {}).get(TAG) == cluster:
            addons[name] = str(addon["addonVersion"])
    groups = [_node_group(name, each) for name, each in eks.node_groups(aws, region, cluster)]
    return RunningVersions(str(description["version"]), str(description["status"]), addons, tuple(groups))


def addon_version(aws: Aws, region: str, addon: str, kubernetes: str, now: str) -> str:
    """The version of an add-on for a Kubernetes version: EKS's default, or *now* where that is newer and fits."""
    fitting = addon_versions(aws, region, addon, kubernetes)
    if not fitting:
        raise SpotmpiError(
            f"EKS has no version of add-on {addon} for Kubernetes {kubernetes} yet: repeat the command later"
        )
    default = next((version for version, chosen in fitting.items() if chosen), max(fitting, key=order))
    return now if now in fitting and order(now) > order(default) else default


def addon_versions(aws: Aws, region: str, addon: str, kubernetes: str) -> dict[str, bool]:
    """The versions of an add-on that fit a Kubernetes version, and whether each is EKS's default; CallError."""
    arguments = {"addonName": addon, "kubernetesVersion": kubernetes}
    offers = aws.pages("eks", region, "describe_addon_versions", "addons", **arguments)
    versions = [version for each in offers for version in each.get("addonVersions", [])]
    return {str(each["addonVersion"]): _is_default(each, kubernetes) for each in versions}


def ami_release(aws: Aws, region: str, kubernetes: str, ami_type: str) -> str:
    """EKS's newest AMI release of a type for a Kubernetes version; CallError, SpotmpiError for a type we don't use."""
    if ami_type not in _AMI_KINDS:
        raise SpotmpiError(f"AMI type {ami_type} is not supported: use one of: {', '.join(_AMI_KINDS)}")
    name = _AMI_PARAMETER.format(version=kubernetes, kind=_AMI_KINDS[ami_type])
    return str(aws.call("ssm", region, "get_parameter", Name=name)["Parameter"]["Value"])


def pin_running_versions(stack: StackFile, aws: Aws, echo: Echo) -> None:
    """Write the running versions of *stack* into its file where the file has older ones, or no Kubernetes version.

    EKS upgrades a control plane whose standard support has ended, and nodes to the newest AMI release with each new
    version of their launch template; it downgrades neither, so an update with the older versions would fail. Nothing
    happens where nothing is built; CallError.
    """
    region = stack.region or aws.region
    if region is None:
        return
    try:
        current = running(aws, region, stack.environment)
    except CallError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return
    pinned, now = stack.kubernetes, current.control_plane
    releases = {
        group: release
        for group, release in current.newest_releases.items()
        if group in stack.ami_releases and order(release) > order(stack.ami_releases[group])
    }
    newer = pinned is None or minor(pinned) < minor(now)
    if not newer and not releases:
        return
    kubernetes = now if newer or pinned is None else pinned
    write_stack(stack.path, with_pins(stack.stack, Pins(kubernetes, {}, releases)))
    parts = [f"Kubernetes {now}"] if newer else []
    parts += [f"AMI release {release} on {group}" for group, release in sorted(releases.items())]
    echo(f"updated {stack.path} to the running versions: {', '.join(parts)}")


def group_of(labels: Mapping[str, str]) -> str | None:
    """The name in the stack's file of a node group with these labels; None for one of somebody else."""
    return labels.get(names.LABEL_GROUP) or (SYSTEM if labels.get(names.LABEL_ROLE) == SYSTEM else None)


def _node_group(name: str, description: Mapping[str, Any]) -> NodeGroupVersion:
    return NodeGroupVersion(
        name=name,
        group=group_of(description.get("labels", {})),
        version=str(description["version"]),
        ami_release=str(description["releaseVersion"]),
        ami_type=str(description["amiType"]),
        status=str(description["status"]),
    )


def _is_default(version: Mapping[str, Any], kubernetes: str) -> bool:
    fits = [each for each in version.get("compatibilities", []) if each.get("clusterVersion") == kubernetes]
    return any(each.get("defaultVersion") for each in fits)
