"""The Auto Scaling groups behind an environment's node groups: their size, and the machines that came and went."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.billing import Life
from spotmpi.aws.instances import instances
from spotmpi.core.environment import Environment

GROUP_TAG = "k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group"
CLUSTER_TAG = "eks:cluster-name"
SIZES_TAG = "spotmpi:nodes"  # "0-16": what a stack's settings say; infra/names.py has it too
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_TAKEN = re.compile(r"spot|rebalance|health check", re.IGNORECASE)


@dataclass(frozen=True)
class ScalingGroup:
    """One Auto Scaling group; a node group of more than 450 nodes has several. `tags` are the group's own."""

    name: str
    group: str | None  # the node group, None for system nodes
    min: int
    max: int
    desired: int
    instances: tuple[str, ...]
    tags: Mapping[str, str]


def scaling_groups(aws: Aws, environment: Environment) -> tuple[ScalingGroup, ...]:
    """The Auto Scaling groups of the environment's cluster, by name."""
    only = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [environment.cluster]}]
    found = aws.pages(
        "autoscaling", environment.region, "describe_auto_scaling_groups", "AutoScalingGroups", Filters=only
    )
    return tuple(sorted((_group(each) for each in found), key=lambda group: group.name))


def lives(aws: Aws, environment: Environment, groups: Sequence[ScalingGroup]) -> tuple[Life, ...]:
    """Every machine of the node groups that AWS still tells of (scaling activities are kept for six weeks)."""
    found = [life for group in groups if group.group for life in _lives(aws, environment, group)]
    known = instances(aws, environment.region, [life.machine for life in found])
    named = (replace(life, name=known[life.machine].host if life.machine in known else None) for life in found)
    return tuple(sorted(named, key=lambda life: (life.began, life.machine)))


def activities(aws: Aws, region: str, group: str) -> list[dict[str, Any]]:
    """What an Auto Scaling group did, newest first."""
    name = {"AutoScalingGroupName": group}
    return aws.pages("autoscaling", region, "describe_scaling_activities", "Activities", **name)


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


def _lives(aws: Aws, environment: Environment, group: ScalingGroup) -> list[Life]:
    made = environment.group(group.group or "")
    done = activities(aws, environment.region, group.name)
    ends = {id: each for each in done if (id := _instance(each, "Terminating"))}
    found = []
    for each in done:
        machine = _instance(each, "Launching")
        # A launch that failed made no machine; one that is under way has one already.
        if machine is None or each["StatusCode"] in ("Failed", "Cancelled"):
            continue
        zone = json.loads(each.get("Details") or "{}").get("Availability Zone", environment.zone)
        began, end = each["StartTime"].timestamp(), ends.get(machine)
        found.append(
            Life(
                machine=machine,
                name=None,
                group=made.name,
                kind=(made.type, zone, made.market),
                began=began,
                ready=each["EndTime"].timestamp() if each.get("EndTime") else began,
                ended=end["StartTime"].timestamp() if end else None,
                reclaimed=bool(end and _TAKEN.search(end.get("Cause", ""))),
            )
        )
    return found


def _instance(activity: Mapping[str, Any], verb: str) -> str | None:
    text = str(activity.get("Description", ""))
    match = _INSTANCE.search(text)
    return match[0] if match and text.startswith(verb) else None
