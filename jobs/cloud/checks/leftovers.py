"""What a former environment of the same name left behind: it bills, or stands in the way of a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from jobs.cloud.checks.finding import Check, Finding, Subject
from jobs.cloud.faults import CallFailed
from jobs.cloud.stack_file import StackFile

TAG = "spotmpi:environment"
_CNI_CLUSTER, _CNI_MACHINE = "cluster.k8s.amazonaws.com/name", "node.k8s.amazonaws.com/instance_id"
Ids = list[str]


@dataclass(frozen=True)
class _Kind:
    what: str
    find: Callable[[Subject, str], Ids]
    remedy: str
    command: str


def _file_systems(subject: Subject, name: str) -> Ids:
    found = subject.aws.pages("efs", subject.region, "describe_file_systems", "FileSystems")
    return [each["FileSystemId"] for each in found if {"Key": TAG, "Value": name} in each["Tags"]]


def _mount_targets(subject: Subject, name: str) -> Ids:
    found: Ids = []
    for system in _file_systems(subject, name):
        targets = subject.aws.pages(
            "efs", subject.region, "describe_mount_targets", "MountTargets", FileSystemId=system
        )
        found += [each["MountTargetId"] for each in targets]
    return found


def _interfaces(subject: Subject, name: str) -> Ids:
    only = [{"Name": f"tag:{TAG}", "Values": [name]}]
    vpcs = subject.aws.pages("ec2", subject.region, "describe_vpcs", "Vpcs", Filters=only)
    # The CNI makes interfaces that carry none of our tags, but stand in our network or name the cluster.
    ways = [only, [{"Name": f"tag:{_CNI_CLUSTER}", "Values": [name]}]]
    if vpcs:
        inside = {"Name": "vpc-id", "Values": [vpc["VpcId"] for vpc in vpcs]}
        ways.append([inside, {"Name": "tag-key", "Values": [_CNI_MACHINE]}])
    found = [
        each["NetworkInterfaceId"]
        for way in ways
        for each in subject.aws.pages(
            "ec2", subject.region, "describe_network_interfaces", "NetworkInterfaces", Filters=way
        )
    ]
    return sorted(set(found))


def _volumes(subject: Subject, name: str) -> Ids:
    ids: Ids = []
    for key, value in ((TAG, name), (f"kubernetes.io/cluster/{name}", "owned")):
        only = [{"Name": f"tag:{key}", "Values": [value]}]
        ids += [
            each["VolumeId"]
            for each in subject.aws.pages("ec2", subject.region, "describe_volumes", "Volumes", Filters=only)
        ]
    return sorted(set(ids))


def _log_groups(subject: Subject, name: str) -> Ids:
    prefix = f"/aws/eks/{name}/"
    found = subject.aws.pages("logs", subject.region, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    return [each["logGroupName"] for each in found]


def _stacks(subject: Subject, name: str) -> Ids:
    found = subject.aws.pages("cloudformation", subject.region, "list_stacks", "StackSummaries")
    alive = [each["StackName"] for each in found if each["StackStatus"] != "DELETE_COMPLETE"]
    return sorted(each for each in alive if each == name or each.startswith(f"eksctl-{name}-"))


_KINDS = (
    _Kind(
        "CloudFormation stacks",
        _stacks,
        "they hold what was made for a cluster of that name by other means",
        "aws cloudformation delete-stack --stack-name {id}",
    ),
    _Kind("file systems", _file_systems, "they bill by the GB", "aws efs delete-file-system --file-system-id {id}"),
    _Kind(
        "mount targets",
        _mount_targets,
        "they hold the file system and a subnet",
        "aws efs delete-mount-target --mount-target-id {id}",
    ),
    _Kind(
        "network interfaces",
        _interfaces,
        "they hold subnets and security groups",
        "aws ec2 delete-network-interface --network-interface-id {id}",
    ),
    _Kind("volumes", _volumes, "they bill by the GB", "aws ec2 delete-volume --volume-id {id}"),
    _Kind(
        "log groups",
        _log_groups,
        "they bill by the GB, and a new environment can't make its own",
        "aws logs delete-log-group --log-group-name {id}",
    ),
)


def _check(kind: _Kind, subject: Subject) -> Iterator[Finding]:
    stack = subject.stack
    if stack is None or stack.kind == "data":  # kept storage is there to stay
        return
    title = f"leftover {kind.what}"
    if is_built(subject, stack):
        yield Finding(title, "ok", f"{stack.environment} is built: what carries its tag is in use")
        return
    ids = kind.find(subject, stack.environment)
    if not ids:
        yield Finding(title, "ok", "none")
        return
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    command = kind.command.format(id=ids[0]) + f" --region {subject.region}"
    remedy = f"{kind.remedy}: if nothing in them is needed, `pulumi destroy --stack {stack.stack}`, else delete them"
    yield Finding(title, "warning", f"{len(ids)} of a former {stack.environment}: {shown}", remedy, command)


def is_built(subject: Subject, stack: StackFile) -> bool:
    """Whether the stack's cluster exists."""
    try:
        subject.aws.call("eks", subject.region, "describe_cluster", name=stack.environment)
    except CallFailed as error:
        if error.code != "ResourceNotFoundException":
            raise
        return False
    return True


CHECKS = tuple(Check(f"leftover {kind.what}", partial(_check, kind)) for kind in _KINDS)
