"""The Auto Scaling groups behind an environment's node groups: sizes, activities, lifetimes of machines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from spotmpi.agent.hardware import INSTANCE_ID
from spotmpi.aws.account import Aws
from spotmpi.aws.billing import Lifetime
from spotmpi.aws.instances import instances
from spotmpi.aws.prices import node_extras
from spotmpi.core.environment import Environment, NodeGroup

GROUP_TAG = "k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group"
CLUSTER_TAG = "eks:cluster-name"
SIZES_TAG = "spotmpi:nodes"  # "0-16": the sizes in the stack's settings; same tag as in infra/names.py
# Only interruptions are EC2's own; after a rebalance recommendation or a health check the group ends the instance.
_RECLAIMED = re.compile(r"\bspot\b[^.]*\binterrupt", re.IGNORECASE)
_NOT_DONE = ("Failed", "Cancelled")
# EKS appends a UUID to the name of a node group, to which Pulumi has appended seven digits.
_REMOVED = r"eks-{}-(?P<group>.+)-[0-9a-f]{{7}}-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
_SYSTEM = "system"  # the group of the system nodes


@dataclass(frozen=True)
class ScalingGroup:
    """One Auto Scaling group; a node group of more than 450 nodes has several. `tags` are those of the group itself."""

    name: str
    group: str | None  # the node group, None for system nodes
    min: int
    max: int
    desired: int
    instances: tuple[str, ...]
    tags: Mapping[str, str]


class RemovedGroup(NamedTuple):
    """A node group of EKS that does not exist any more, by its name, and its activities, newest first."""

    group: str
    history: list[dict[str, Any]]

    def is_of(self, name: str) -> bool:
        """Whether it is the node group *name*, or the second part of one of more than 450 nodes, or a later one."""
        return self.group == name or re.fullmatch(re.escape(name) + r"-\d+", self.group) is not None

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that it launched."""
        return tuple(machine for each in self.history if (machine := _machine_launched(each)))


def scaling_groups(aws: Aws, environment: Environment) -> tuple[ScalingGroup, ...]:
    """The Auto Scaling groups of the environment's cluster, by name."""
    return _scaling_groups(aws, environment.region, environment.cluster)


def running_nodes(aws: Aws, region: str, cluster: str) -> dict[str, int]:
    """The number of machines that run or start, by Auto Scaling group of the cluster, the system group included."""
    return {group.name: max(group.desired, len(group.instances)) for group in _scaling_groups(aws, region, cluster)}


def _scaling_groups(aws: Aws, region: str, cluster: str) -> tuple[ScalingGroup, ...]:
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
    groups = aws.pages("autoscaling", region, "describe_auto_scaling_groups", "AutoScalingGroups", Filters=filters)
    return tuple(sorted((_group(each) for each in groups), key=lambda group: group.name))


def lifetimes(aws: Aws, environment: Environment, groups: Sequence[ScalingGroup]) -> tuple[Lifetime, ...]:
    """The lifetimes of the machines of the environment's node groups, by start; AWS keeps activities for six weeks.

    Of a machine that runs for longer EC2 tells since when. *groups* may have more than a recorded environment.
    """
    known_groups = {group.name: group for group in environment.node_groups}
    groups = [group for group in groups if group.group in known_groups]
    machines = [
        each
        for group in groups
        for each in group_lifetimes(known_groups[group.group or ""], activities(aws, environment.region, group.name))
    ]
    launched = {each.machine for each in machines}
    older = {id: group for group in groups for id in group.instances if id not in launched}
    known = instances(aws, environment.region, sorted({*launched, *older}))
    for id, group in older.items():
        if id in known and (began := known[id].launched) is not None:
            node_group = known_groups[group.group or ""]
            machines.append(_lifetime(id, node_group, known[id].zone or node_group.zone, (began, began, None)))
    named = (replace(each, name=known[each.machine].host if each.machine in known else None) for each in machines)
    return tuple(sorted(named, key=lambda each: (each.began, each.machine)))


def removed_groups(aws: Aws, environment: Environment, groups: Sequence[ScalingGroup]) -> tuple[RemovedGroup, ...]:
    """The environment's node groups of the last six weeks whose Auto Scaling group is not among *groups* any more.

    Nothing but their names tells whose they were: AWS keeps the activities of a deleted group, and not its tags.
    """
    name, present = re.compile(_REMOVED.format(re.escape(environment.name))), {group.name for group in groups}
    found: dict[str, RemovedGroup] = {}
    method = "describe_scaling_activities"
    for each in aws.pages("autoscaling", environment.region, method, "Activities", IncludeDeletedGroups=True):
        match = name.fullmatch(each["AutoScalingGroupName"])
        if match and match["group"] != _SYSTEM and match[0] not in present:
            found.setdefault(match[0], RemovedGroup(match["group"], [])).history.append(each)
    return tuple(found[each] for each in sorted(found))


def activities(aws: Aws, region: str, group: str) -> list[dict[str, Any]]:
    """The activities of an Auto Scaling group, newest first."""
    arguments = {"AutoScalingGroupName": group}
    return aws.pages("autoscaling", region, "describe_scaling_activities", "Activities", **arguments)


def set_sizes(aws: Aws, region: str, group: ScalingGroup, sizes: Mapping[str, int]) -> None:
    """Give a group other sizes: some of ``MinSize``, ``MaxSize`` and ``DesiredCapacity``."""
    aws.call("autoscaling", region, "update_auto_scaling_group", AutoScalingGroupName=group.name, **sizes)


def schedule_sizes(
    aws: Aws, region: str, group: ScalingGroup, name: str, at: datetime | None, sizes: Mapping[str, int]
) -> None:
    """Let AWS give a group these sizes *at* a time, by a scheduled action of that *name*; with None no longer."""
    which = {"AutoScalingGroupName": group.name, "ScheduledActionName": f"{name}-{group.name}"}
    if at is None:
        aws.find("autoscaling", region, "delete_scheduled_action", {"ValidationError"}, **which)  # there may be none
    else:
        aws.call("autoscaling", region, "put_scheduled_update_group_action", **which, **sizes, StartTime=at)


def _group(values: Mapping[str, Any]) -> ScalingGroup:
    tags = {tag["Key"]: tag["Value"] for tag in values.get("Tags", [])}
    return ScalingGroup(
        name=values["AutoScalingGroupName"],
        group=tags.get(GROUP_TAG),
        min=values["MinSize"],
        max=values["MaxSize"],
        desired=values["DesiredCapacity"],
        instances=tuple(each["InstanceId"] for each in values.get("Instances", [])),
        tags=tags,
    )


def group_lifetimes(node_group: NodeGroup, history: Sequence[Mapping[str, Any]]) -> list[Lifetime]:
    """The nodes that a group has had, by the activities that AWS keeps for six weeks."""
    terminations = [each for each in history if each["StatusCode"] not in _NOT_DONE]
    ends = {id: each for each in terminations if (id := _instance_of(each, "Terminating"))}
    result = []
    for each in history:
        if (machine := _machine_launched(each)) is None:
            continue
        zone = json.loads(each.get("Details") or "{}").get("Availability Zone", node_group.zone)
        began, end = each["StartTime"].timestamp(), ends.get(machine)
        ready = each["EndTime"].timestamp() if each.get("EndTime") else began
        # The drain before the end takes minutes, which are billed; without an EndTime it still lasts.
        ended = end["EndTime"].timestamp() if end and end.get("EndTime") else None
        reclaimed = bool(end and _RECLAIMED.search(end.get("Cause", "")))
        result.append(_lifetime(machine, node_group, zone, (began, ready, ended), reclaimed))
    return result


def _lifetime(
    machine: str, group: NodeGroup, zone: str, times: tuple[float, float, float | None], reclaimed: bool = False
) -> Lifetime:
    """The lifetime of a machine of *group* whose host is not known yet; *times* are its begin, its service, its end."""
    began, ready, ended = times
    return Lifetime(
        machine=machine,
        name=None,
        group=group.name,
        kind=(group.type, zone, group.market),
        began=began,
        ready=ready,
        ended=ended,
        reclaimed=reclaimed,
        extras=node_extras(group),
    )


def _machine_launched(activity: Mapping[str, Any]) -> str | None:
    """The machine of a launch; a failed one has none, and one in progress has it already."""
    return None if activity["StatusCode"] in _NOT_DONE else _instance_of(activity, "Launching")


def _instance_of(activity: Mapping[str, Any], verb: str) -> str | None:
    text = str(activity.get("Description", ""))
    match = INSTANCE_ID.search(text)
    return match[0] if match and text.startswith(verb) else None
