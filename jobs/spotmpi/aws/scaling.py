"""The Auto Scaling groups behind an environment's node groups: sizes, activities, lifetimes of machines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.billing import Lifetime
from spotmpi.aws.instances import instances
from spotmpi.core.environment import Environment

GROUP_TAG = "k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group"
CLUSTER_TAG = "eks:cluster-name"
SIZES_TAG = "spotmpi:nodes"  # "0-16": the sizes in the stack's settings; same tag as in infra/names.py
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_RECLAIMED = re.compile(r"spot|rebalance|health check", re.IGNORECASE)


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


def scaling_groups(aws: Aws, environment: Environment) -> tuple[ScalingGroup, ...]:
    """The Auto Scaling groups of the environment's cluster, by name."""
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [environment.cluster]}]
    groups = aws.pages(
        "autoscaling", environment.region, "describe_auto_scaling_groups", "AutoScalingGroups", Filters=filters
    )
    return tuple(sorted((_group(each) for each in groups), key=lambda group: group.name))


def lifetimes(aws: Aws, environment: Environment, groups: Sequence[ScalingGroup]) -> tuple[Lifetime, ...]:
    """The lifetimes of the node groups' machines, by start; AWS keeps scaling activities for six weeks."""
    machines = [each for group in groups if group.group for each in _lifetimes(aws, environment, group)]
    known = instances(aws, environment.region, [each.machine for each in machines])
    named = (replace(each, name=known[each.machine].host if each.machine in known else None) for each in machines)
    return tuple(sorted(named, key=lambda each: (each.began, each.machine)))


def activities(aws: Aws, region: str, group: str) -> list[dict[str, Any]]:
    """The activities of an Auto Scaling group, newest first."""
    arguments = {"AutoScalingGroupName": group}
    return aws.pages("autoscaling", region, "describe_scaling_activities", "Activities", **arguments)


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


def _lifetimes(aws: Aws, environment: Environment, group: ScalingGroup) -> list[Lifetime]:
    node_group = environment.group(group.group or "")
    history = activities(aws, environment.region, group.name)
    ends = {id: each for each in history if (id := _instance_of(each, "Terminating"))}
    result = []
    for each in history:
        machine = _instance_of(each, "Launching")
        # A failed launch has no machine; one in progress has one already.
        if machine is None or each["StatusCode"] in ("Failed", "Cancelled"):
            continue
        zone = json.loads(each.get("Details") or "{}").get("Availability Zone", environment.zone)
        began, end = each["StartTime"].timestamp(), ends.get(machine)
        result.append(
            Lifetime(
                machine=machine,
                name=None,
                group=node_group.name,
                kind=(node_group.type, zone, node_group.market),
                began=began,
                ready=each["EndTime"].timestamp() if each.get("EndTime") else began,
                ended=end["StartTime"].timestamp() if end else None,
                reclaimed=bool(end and _RECLAIMED.search(end.get("Cause", ""))),
            )
        )
    return result


def _instance_of(activity: Mapping[str, Any], verb: str) -> str | None:
    text = str(activity.get("Description", ""))
    match = _INSTANCE.search(text)
    return match[0] if match and text.startswith(verb) else None
