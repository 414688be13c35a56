"""Nodes that are kept ready for a while; AWS itself releases them on schedule, whether or not anybody is online."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.eks import require_account
from spotmpi.aws.errors import CallError
from spotmpi.aws.scaling import ScalingGroup, scaling_groups
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments.stack_file import stack_of

_SHORTEST = timedelta(minutes=1)


@dataclass(frozen=True)
class WarmNodes:
    """The least number of nodes that a group keeps, and until when (None: no longer than the settings say)."""

    group: str
    nodes: int
    until: datetime | None
    running: int


def keep_warm(
    environment: Environment,
    group: str,
    nodes: int,
    duration: timedelta,
    aws: Aws | None = None,
    now: datetime | None = None,
) -> WarmNodes:
    """Keep at least *nodes* nodes of *group* for *duration*, or with 0 release them now.

    The end is scheduled with AWS before the first node is requested. InputError for an unknown group or number,
    SpotmpiError where AWS's own sizes do not allow it, as after the end of `up --expires`.
    """
    chosen = environment.group(group)
    if not 0 <= nodes <= chosen.max:
        raise input_error("N", nodes, f"give 0 to {chosen.max}, the max of group {group} in the stack's file")
    if duration < _SHORTEST:
        raise input_error("--for", f"{duration.total_seconds():g}s", "give at least 1m: AWS schedules by the minute")
    aws, until = aws or open_account(environment.region), (now or datetime.now(UTC)) + duration
    require_account(aws, environment.cluster_arn)
    groups = [each for each in scaling_groups(aws, environment) if each.group == group]
    # The first part of a group has its name alone, and the others a number behind it.
    groups.sort(key=lambda each: len(each.name))
    if not groups:
        raise SpotmpiError(f"AWS has no Auto Scaling group of {group} in {environment.cluster}: run `pulumi up` again")
    if (most := sum(each.max for each in groups)) < nodes:
        remedy = f"`spotmpi up {stack_of(environment.name)}` opens groups that `up --expires` has closed"
        raise SpotmpiError(f"the Auto Scaling group of {group} has max {most} now: {remedy}")
    warm_sizes = _distribute(max(nodes, chosen.min), groups)
    usual_sizes = _distribute(chosen.min, groups)
    for each in groups:
        if warm_sizes[each.name] > usual_sizes[each.name]:
            _schedule_end(aws, environment, each, usual_sizes[each.name], until)
        else:
            _cancel_end(aws, environment, each)
        _set_min_size(aws, environment, each, warm_sizes[each.name])
    running = sum(len(each.instances) for each in groups)
    return WarmNodes(group, sum(warm_sizes.values()), until if nodes > chosen.min else None, running)


def _distribute(nodes: int, groups: Sequence[ScalingGroup]) -> dict[str, int]:
    """The number of nodes that each Auto Scaling group of a node group keeps; the first is filled first."""
    sizes = {}
    for each in groups:
        sizes[each.name] = min(nodes, each.max)
        nodes -= sizes[each.name]
    return sizes


def _schedule_end(aws: Aws, environment: Environment, group: ScalingGroup, nodes: int, until: datetime) -> None:
    aws.call(
        "autoscaling",
        environment.region,
        "put_scheduled_update_group_action",
        AutoScalingGroupName=group.name,
        ScheduledActionName=_action_name(group),
        StartTime=until,
        MinSize=nodes,
    )


def _cancel_end(aws: Aws, environment: Environment, group: ScalingGroup) -> None:
    which = {"AutoScalingGroupName": group.name, "ScheduledActionName": _action_name(group)}
    try:
        aws.call("autoscaling", environment.region, "delete_scheduled_action", **which)
    except CallError as error:
        if error.code != "ValidationError":  # there is none
            raise


def _action_name(group: ScalingGroup) -> str:
    return f"spotmpi-give-back-{group.name}"


def _set_min_size(aws: Aws, environment: Environment, group: ScalingGroup, nodes: int) -> None:
    size: dict[str, int] = {"MinSize": nodes}
    if group.desired < nodes:
        size["DesiredCapacity"] = nodes
    which = {"AutoScalingGroupName": group.name}
    aws.call("autoscaling", environment.region, "update_auto_scaling_group", **which, **size)
