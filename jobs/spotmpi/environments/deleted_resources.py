"""What an update would not build anew, since Pulumi's state has it: what AWS has deleted, or could not create.

Of a node group whose nodes could not join, or of a NAT gateway that failed, the state has an error, and the next update
sends an empty update, which succeeds (`Create` and `Update` in pkg/tfbridge/provider.go of pulumi-terraform-bridge).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import CallFailure, ConcurrentCalls
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.pulumi import STACK, resources_of, unfinished_creations
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi

# How AWS describes one of a type: service, method, the parameters that its id has, and what the type is called.
_KINDS: Mapping[str, tuple[str, str, tuple[str, ...], str]] = {
    "aws:ec2/vpc:Vpc": ("ec2", "describe_vpcs", ("VpcIds",), "network"),
    "aws:ec2/natGateway:NatGateway": ("ec2", "describe_nat_gateways", ("NatGatewayIds",), "NAT gateway"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("ec2", "describe_vpc_endpoints", ("VpcEndpointIds",), "network endpoint"),
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
    *("MountTargetNotFound", "AccessPointNotFound", "NatGatewayNotFound", "InvalidVpcEndpointId.NotFound"),
)
_FOUNDATIONS = ("network", "cluster")
# Statuses in AWS's models: of clusters, node groups and add-ons in EKS, `LifeCycleState` in EFS and `State` in EC2.
DELETED, DELETING = "DELETED", "DELETING"
_FAILED = ("CREATE_FAILED", "DELETE_FAILED", "FAILED", "ERROR", "REJECTED")
_WORDS = {DELETED: "deleted outside of Pulumi", DELETING: "being deleted by AWS"}
_FAILURE = "failed in AWS"
# What holds no data, and can be deleted where it has failed: the method, and the parameters that its id has.
_DELETIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aws:ec2/natGateway:NatGateway": ("delete_nat_gateway", ("NatGatewayId",)),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("delete_vpc_endpoints", ("VpcEndpointIds",)),
    "aws:eks/nodeGroup:NodeGroup": ("delete_nodegroup", ("clusterName", "nodegroupName")),
    "aws:eks/addon:Addon": ("delete_addon", ("clusterName", "addonName")),
    "aws:efs/mountTarget:MountTarget": ("delete_mount_target", ("MountTargetId",)),
    "aws:efs/accessPoint:AccessPoint": ("delete_access_point", ("AccessPointId",)),
}
_INTERVAL, _TIMEOUT = 10.0, 1800.0  # seconds between checks, and for a deletion; that of a node group drains its nodes


@dataclass(frozen=True)
class DeletedResource:
    """A resource in Pulumi's state that AWS does not have, or soon will not: its kind in words, id, URN and status."""

    kind: str
    id: str
    urn: str
    status: str
    resource: Mapping[str, Any]

    @property
    def is_foundation(self) -> bool:
        """Whether nearly everything else was in it, and is gone as well or has to be replaced."""
        return self.kind in _FOUNDATIONS

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def correct_state(stack: str, environment: str, region: str, dependencies: Dependencies) -> None:
    """Remove from Pulumi's state of a stack what was deleted outside of it, which an update then builds anew.

    *environment* is the stack that it is a part of. SpotmpiError where the state may lack something that exists, or
    where nearly all is gone.
    """
    pulumi, echo = dependencies.pulumi, dependencies.echo
    state = pulumi.state(stack)
    if message := unfinished_creations(stack, state):
        _require_unlocked(stack, state, pulumi)
        raise SpotmpiError(message)
    deleted, failures = find_deleted(dependencies.aws, region, state)
    for failure in failures:
        echo(f"whether parts of {stack} were deleted can't be checked: {failure}")
    if not deleted:
        return
    if gone := [each for each in deleted if each.is_foundation]:
        _require_unlocked(stack, state, pulumi)
        remedy = f"`spotmpi down {environment}` deletes the rest, then this command builds all anew"
        raise SpotmpiError(f"{stack} was not changed: {_by_status(gone)}: {remedy}")
    if present := [each for each in deleted if each.status != DELETED]:
        _require_unlocked(stack, state, pulumi)
        _delete_failed(stack, region, present, dependencies)
        _wait_until_deleted(region, present, dependencies)
    echo(f"to be built anew: {_by_status(deleted)}")
    _refresh(stack, [*_with_dependents({each.urn for each in deleted}, resources_of(state))], pulumi)


def _by_status(resources: Sequence[DeletedResource]) -> str:
    """The resources in words, with what AWS says of them."""
    named: dict[str, list[str]] = {}
    for each in resources:
        named.setdefault(_WORDS.get(each.status, _FAILURE), []).append(str(each))
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in named.items())


def _delete_failed(stack: str, region: str, resources: Sequence[DeletedResource], dependencies: Dependencies) -> None:
    """Delete what has failed, after a confirmation: it can't be updated, and its nodes may bill."""
    failed = [each for each in resources if each.status != DELETING]
    if not failed:
        return
    names = ", ".join(map(str, failed))
    if not dependencies.confirm(f"Delete {names}, which failed in AWS, and build anew?"):
        raise SpotmpiError(f"{stack} was not changed: {_FAILURE}: {names}: delete that, then repeat the command")
    for each in failed:
        kind = each.resource["type"]
        method, keys = _DELETIONS[kind]
        dependencies.aws.find(_KINDS[kind][0], region, method, _ABSENT, **_arguments(each.resource, keys))


def _wait_until_deleted(region: str, resources: Sequence[DeletedResource], dependencies: Dependencies) -> None:
    """Wait until AWS has deleted these; SpotmpiError where it fails, or takes too long."""
    waited, waiting, begun = 0.0, list(resources), set[str]()
    dependencies.echo(f"waiting until AWS has deleted {', '.join(map(str, waiting))}")
    while True:
        statuses = {each.urn: _status(dependencies.aws, region, each.resource) for each in waiting}
        waiting = [each for each in waiting if statuses[each.urn] != DELETED]
        if not waiting:
            return
        # One that had failed before keeps that status until its deletion begins.
        if failed := [each for each in waiting if each.urn in begun and statuses[each.urn] in _FAILED]:
            remedy = "its health issues in the console say why: mend that, then repeat the command"
            raise SpotmpiError(f"AWS could not delete {', '.join(map(str, failed))}: {remedy}")
        begun |= {urn for urn, status in statuses.items() if status == DELETING}
        if waited >= _TIMEOUT:
            remedy = "look in the console for what it waits for, then repeat the command"
            raise SpotmpiError(f"not deleted by AWS after {_TIMEOUT:.0f} s: {', '.join(map(str, waiting))}: {remedy}")
        dependencies.sleep(_INTERVAL)
        waited += _INTERVAL


def _with_dependents(urns: set[str], resources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """*urns*, and what AWS deleted with these, such as the tags of a node group and the policies of an access entry."""
    for each in resources:
        is_dependent = str(each["type"]).startswith("aws:") and urns.intersection(each.get("dependencies") or ())
        if each.get("urn") in urns or is_dependent:
            yield str(each["urn"])


def _require_unlocked(stack: str, state: Mapping[str, Any] | None, pulumi: Pulumi) -> None:
    """Raise where another update is at work, whose state is not its last one.

    A refresh takes the lock, as no preview of an update does (pkg/backend/diy/backend.go); that of the stack itself
    asks no provider.
    """
    if urns := [str(each["urn"]) for each in resources_of(state) if each["type"] == STACK]:
        _refresh(stack, urns, pulumi)


def _refresh(stack: str, urns: Sequence[str], pulumi: Pulumi) -> None:
    targets = [option for urn in urns for option in ("--target", urn)]
    pulumi.run(stack, "refresh", "--yes", "--skip-preview", *targets)


def find_deleted(aws: Aws, region: str, state: Mapping[str, Any] | None) -> tuple[list[DeletedResource], list[str]]:
    """What AWS lacks of a stack's state, by `pulumi stack export`, and why something could not be asked; CloudError."""
    with ConcurrentCalls() as calls:
        pending = [(each, calls.submit(partial(_status, aws, region, each))) for each in _known(resources_of(state))]
        answers = [(each, call.result()) for each, call in pending]
    failures = [answer.detail for _, answer in answers if isinstance(answer, CallFailure)]
    deleted = [
        DeletedResource(_KINDS[each["type"]][3], _names(each)[-1], each["urn"], answer, each)
        for each, answer in answers
        if isinstance(answer, str) and _is_lost(each, answer)
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


def _is_lost(resource: Mapping[str, Any], status: str) -> bool:
    """Whether it is gone, or will be: a file system that failed may hold data, so that is not."""
    can_go = resource["type"] in _DELETIONS or _KINDS[resource["type"]][3] in _FOUNDATIONS
    return status in (DELETED, DELETING) or (can_go and status in _FAILED)


def _status(aws: Aws, region: str, resource: Mapping[str, Any]) -> str:
    """What AWS says of a resource, in capitals: DELETED where it does not exist, empty for a kind without a status."""
    service, method, keys, _ = _KINDS[resource["type"]]
    answer = aws.find(service, region, method, _ABSENT, **_arguments(resource, keys))
    if answer is None:
        return DELETED
    described = next(value for key, value in answer.items() if key != "ResponseMetadata")
    one = described[0] if isinstance(described, list) else described
    return str(one.get("status") or one.get("LifeCycleState") or one.get("State") or "").upper()


def _arguments(resource: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of a call that name a resource, those of EC2 as lists."""
    names = zip(keys, _names(resource), strict=True)
    return {key: [name] if key.endswith("Ids") else name for key, name in names}
