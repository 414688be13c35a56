"""What is left of an environment in an account: found by tag, by name, and by the ids that were written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed

TAG = "spotmpi:environment"
# The CNI tags its interfaces with the cluster's name, and with the machine that it made one for.
CNI_CLUSTER, CNI_MACHINE = "cluster.k8s.amazonaws.com/name", "node.k8s.amazonaws.com/instance_id"
# eksctl tags its stacks with the name of the cluster, in its own spelling and in that of its first versions.
_EKSCTL_CLUSTER = ("alpha.eksctl.io/cluster-name", "eksctl.cluster.k8s.io/v1alpha1/cluster-name")
SYSTEMS, TARGETS, INTERFACES, VOLUMES = "file systems", "mount targets", "network interfaces", "volumes"
LOGS, KEYS, REPOSITORIES, STACKS, NETWORKS = (
    "log groups",
    "keys",
    "image repositories",
    "CloudFormation stacks",
    "networks",
)
Ids = list[str]


@dataclass(frozen=True)
class Trace:
    """What is known of an environment: its name, which is its cluster's too, and ids by kind that were written down."""

    name: str
    region: str
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def of(self, kind: str) -> set[str]:
        """The written-down ids of a kind."""
        return set(self.ids.get(kind, ()))


@dataclass(frozen=True)
class Kind:
    """A kind of thing that can be left: how it is found, why it matters, and the command that deletes one."""

    what: str
    find: Callable[[Aws, Trace], Ids]
    remedy: str
    command: str


def _file_systems(aws: Aws, trace: Trace) -> Ids:
    found = aws.pages("efs", trace.region, "describe_file_systems", "FileSystems")
    ours = {"Key": TAG, "Value": trace.name}
    known = trace.of(SYSTEMS)
    return [each["FileSystemId"] for each in found if ours in each["Tags"] or each["FileSystemId"] in known]


def _mount_targets(aws: Aws, trace: Trace) -> Ids:
    """Those of our file systems, and the written-down ones: persistent storage is another environment's file system."""
    ways = [{"FileSystemId": system} for system in _file_systems(aws, trace)]
    ways += [{"MountTargetId": target} for target in sorted(trace.of(TARGETS))]
    return sorted({target for way in ways for target in _targets(aws, trace.region, way)})


def _targets(aws: Aws, region: str, way: dict[str, str]) -> Ids:
    try:
        found = aws.pages("efs", region, "describe_mount_targets", "MountTargets", **way)
    except CallFailed as error:
        if error.code != "MountTargetNotFound":
            raise
        return []
    return [each["MountTargetId"] for each in found]


def networks_of(aws: Aws, trace: Trace) -> list[str]:
    """The ids of the environment's VPCs: those that carry its tag, and those that were written down."""
    vpcs = aws.pages("ec2", trace.region, "describe_vpcs", "Vpcs", Filters=[_tagged(trace)])
    return sorted({vpc["VpcId"] for vpc in vpcs} | trace.of(NETWORKS))


def _interfaces(aws: Aws, trace: Trace) -> Ids:
    # The CNI makes interfaces that carry none of our tags, but stand in our network or name the cluster.
    ways = [[_tagged(trace)], [{"Name": f"tag:{CNI_CLUSTER}", "Values": [trace.name]}]]
    if networks := networks_of(aws, trace):
        ways.append([{"Name": "vpc-id", "Values": networks}, {"Name": "tag-key", "Values": [CNI_MACHINE]}])
    if known := sorted(trace.of(INTERFACES)):
        ways.append([{"Name": "network-interface-id", "Values": known}])
    return _by_filters(aws, trace, "network_interfaces", "NetworkInterfaceId", ways)


def _volumes(aws: Aws, trace: Trace) -> Ids:
    ways = [[_tagged(trace)], [{"Name": f"tag:kubernetes.io/cluster/{trace.name}", "Values": ["owned"]}]]
    if known := sorted(trace.of(VOLUMES)):
        ways.append([{"Name": "volume-id", "Values": known}])
    return _by_filters(aws, trace, "volumes", "VolumeId", ways)


def _by_filters(aws: Aws, trace: Trace, what: str, key: str, ways: Sequence[list[dict[str, Any]]]) -> Ids:
    """Ids of EC2's *what* that fit any of the *ways*."""
    answer = "".join(part.capitalize() for part in what.split("_"))
    found = (
        each[key] for way in ways for each in aws.pages("ec2", trace.region, f"describe_{what}", answer, Filters=way)
    )
    return sorted(set(found))


def _tagged(trace: Trace) -> dict[str, Any]:
    return {"Name": f"tag:{TAG}", "Values": [trace.name]}


def _log_groups(aws: Aws, trace: Trace) -> Ids:
    prefixes = sorted({f"/aws/eks/{trace.name}/", f"/aws/containerinsights/{trace.name}/"} | trace.of(LOGS))
    found: set[str] = set()
    for prefix in prefixes:
        groups = aws.pages("logs", trace.region, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
        found |= {each["logGroupName"] for each in groups}
    return sorted(
        each for each in found if each in prefixes or any(each.startswith(p) for p in prefixes if p[-1] == "/")
    )


def _keys(aws: Aws, trace: Trace) -> Ids:
    """Keys that nobody has scheduled for deletion: the written-down ones, since no name leads to a key."""
    return [key for key in sorted(trace.of(KEYS)) if key_lives(aws, trace.region, key)]


def key_lives(aws: Aws, region: str, key: str) -> bool:
    """Whether a key exists and is not on its way out, which costs nothing."""
    try:
        told = aws.call("kms", region, "describe_key", KeyId=key)["KeyMetadata"]
    except CallFailed as error:
        if error.code != "NotFoundException":
            raise
        return False
    return told["KeyState"] not in ("PendingDeletion", "PendingReplicaDeletion")


def cluster_exists(aws: Aws, region: str, name: str) -> bool:
    """Whether EKS has a cluster of that name, also one on its way out."""
    try:
        aws.call("eks", region, "describe_cluster", name=name)
    except CallFailed as error:
        if error.code != "ResourceNotFoundException":
            raise
        return False
    return True


def _repositories(aws: Aws, trace: Trace) -> Ids:
    found = aws.pages("ecr", trace.region, "describe_repositories", "repositories")
    names, known = [each["repositoryName"] for each in found], trace.of(REPOSITORIES)
    return sorted(name for name in names if name.startswith(f"{trace.name}/") or name in known)


def _stacks(aws: Aws, trace: Trace) -> Ids:
    """The stack of the environment's name, and those that eksctl made for a cluster of that name."""
    found = aws.pages("cloudformation", trace.region, "describe_stacks", "Stacks")
    return sorted(
        each["StackName"]
        for each in found
        if each["StackName"] == trace.name
        or any(tag["Key"] in _EKSCTL_CLUSTER and tag["Value"] == trace.name for tag in each.get("Tags", []))
    )


_BY_THE_GB = "they bill by the GB"
KINDS = (
    Kind(
        STACKS,
        _stacks,
        "they hold what was made for a cluster of that name by other means",
        "aws cloudformation delete-stack --stack-name {id}",
    ),
    Kind(SYSTEMS, _file_systems, _BY_THE_GB, "aws efs delete-file-system --file-system-id {id}"),
    Kind(
        TARGETS,
        _mount_targets,
        "they hold the file system and a subnet",
        "aws efs delete-mount-target --mount-target-id {id}",
    ),
    Kind(
        INTERFACES,
        _interfaces,
        "they hold subnets and security groups",
        "aws ec2 delete-network-interface --network-interface-id {id}",
    ),
    Kind(VOLUMES, _volumes, _BY_THE_GB, "aws ec2 delete-volume --volume-id {id}"),
    Kind(
        LOGS,
        _log_groups,
        "they bill by the GB, and a new environment can't make its own",
        "aws logs delete-log-group --log-group-name {id}",
    ),
    Kind(
        KEYS, _keys, "each bills by the month", "aws kms schedule-key-deletion --pending-window-in-days 7 --key-id {id}"
    ),
    Kind(REPOSITORIES, _repositories, _BY_THE_GB, "aws ecr delete-repository --force --repository-name {id}"),
)
