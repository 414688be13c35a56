"""What was deleted outside of Pulumi, whose state has it still, so that an update would not build it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import CallFailure, ConcurrentCalls

# How AWS describes one of a type: service, method, the parameters that its id has, and what the type is called.
_KINDS: Mapping[str, tuple[str, str, tuple[str, ...], str]] = {
    "aws:ec2/vpc:Vpc": ("ec2", "describe_vpcs", ("VpcIds",), "network"),
    "aws:eks/cluster:Cluster": ("eks", "describe_cluster", ("name",), "cluster"),
    "aws:eks/nodeGroup:NodeGroup": ("eks", "describe_nodegroup", ("clusterName", "nodegroupName"), "node group"),
    "aws:eks/addon:Addon": ("eks", "describe_addon", ("clusterName", "addonName"), "add-on"),
    "aws:eks/accessEntry:AccessEntry": ("eks", "describe_access_entry", ("clusterName", "principalArn"), "access of"),
    "aws:efs/fileSystem:FileSystem": ("efs", "describe_file_systems", ("FileSystemId",), "file system"),
    "aws:efs/mountTarget:MountTarget": ("efs", "describe_mount_targets", ("MountTargetId",), "mount target"),
    "aws:efs/accessPoint:AccessPoint": ("efs", "describe_access_points", ("AccessPointId",), "access point"),
}
_ABSENT = (
    *("ResourceNotFoundException", "InvalidVpcID.NotFound", "FileSystemNotFound"),
    *("MountTargetNotFound", "AccessPointNotFound"),
)
_FOUNDATIONS = ("network", "cluster")


@dataclass(frozen=True)
class DeletedResource:
    """A resource in Pulumi's state that AWS does not have: its kind in words, its id there, and its URN."""

    kind: str
    id: str
    urn: str

    @property
    def is_foundation(self) -> bool:
        """Whether nearly everything else was in it, and is gone as well or has to be replaced."""
        return self.kind in _FOUNDATIONS

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def find_deleted(aws: Aws, region: str, state: Mapping[str, Any] | None) -> tuple[list[DeletedResource], list[str]]:
    """What AWS lacks of a stack's state, by `pulumi stack export`, and why something could not be asked; CloudError."""
    resources = (state or {}).get("deployment", {}).get("resources") or []
    with ConcurrentCalls() as calls:
        pending = [(each, calls.submit(partial(_exists, aws, region, each))) for each in _known(resources)]
        answers = [(each, call.result()) for each, call in pending]
    failures = [answer.detail for _, answer in answers if isinstance(answer, CallFailure)]
    deleted = [
        DeletedResource(_KINDS[each["type"]][3], _names(each)[-1], each["urn"])
        for each, answer in answers
        if answer is False
    ]
    return deleted, list(dict.fromkeys(failures))


def _known(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The resources of a kind that is asked for; what the stack only reads, or deletes already, is not one of them."""
    for each in resources:
        own = not each.get("external") and not each.get("delete")
        if own and each.get("type") in _KINDS and each.get("id") and each.get("urn"):
            yield each


def _names(resource: Mapping[str, Any]) -> list[str]:
    """The parts of an id: of what is in a cluster, the cluster's name comes first."""
    return str(resource["id"]).split(":", len(_KINDS[resource["type"]][2]) - 1)


def _exists(aws: Aws, region: str, resource: Mapping[str, Any]) -> bool:
    service, method, keys, _ = _KINDS[resource["type"]]
    arguments = dict(zip(keys, _names(resource), strict=True))
    values = {key: [name] if key == "VpcIds" else name for key, name in arguments.items()}
    return aws.find(service, region, method, _ABSENT, **values) is not None
