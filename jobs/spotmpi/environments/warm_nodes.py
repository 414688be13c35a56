"""Nodes that are kept ready for a while, and given back by AWS itself, whoever has gone home by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.scaling import ScalingGroup, scaling_groups
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error

_SHORTEST = timedelta(minutes=1)


@dataclass(frozen=True)
class Warm:
    """How many nodes of a group are kept from now on, at least, and until when (None: nobody keeps any)."""

    group: str
    nodes: int
    until: datetime | None
    running: int


def keep_warm(
    environment: Environment,
    group: str,
    nodes: int,
    warm: timedelta,
    aws: Aws | None = None,
    now: datetime | None = None,
) -> Warm:
    """Keep at least *nodes* nodes of *group* for *warm*, or with 0 give them back now.

    The end is laid down with AWS before the first node is asked for. InputError for a group or number that can't be.
    """
    chosen = environment.group(group)
    if not 0 <= nodes <= chosen.max:
        raise input_error("N", nodes, f"group {group} has 0 to {chosen.max} nodes; its max is in the stack's file")
    if warm < _SHORTEST:
        raise input_error("--warm", f"{warm.total_seconds():g}s", "AWS keeps time by the minute: at least 1m")
    aws, until = aws or open_account(environment.region), (now or datetime.now(UTC)) + warm
    groups = [each for each in scaling_groups(aws, environment) if each.group == group]
    if not groups:
        raise SpotmpiError(f"AWS has no Auto Scaling group of {group} in {environment.cluster}: run `pulumi up` again")
    least = _spread(max(nodes, chosen.min), groups)
    kept = _spread(chosen.min, groups)
    for each in groups:
        if least[each.name] > kept[each.name]:
            _lay_down_end(aws, environment, each, kept[each.name], until)
        else:
            _forget_end(aws, environment, each)
        _set_least(aws, environment, each, least[each.name])
    running = sum(len(each.instances) for each in groups)
    return Warm(group, sum(least.values()), until if nodes > chosen.min else None, running)


def _spread(nodes: int, groups: Sequence[ScalingGroup]) -> dict[str, int]:
    """How many nodes each Auto Scaling group of a node group keeps; the first is filled first."""
    made = {}
    for each in groups:
        made[each.name] = min(nodes, each.max)
        nodes -= made[each.name]
    return made


def _lay_down_end(aws: Aws, environment: Environment, group: ScalingGroup, nodes: int, until: datetime) -> None:
    aws.call(
        "autoscaling",
        environment.region,
        "put_scheduled_update_group_action",
        AutoScalingGroupName=group.name,
        ScheduledActionName=_action(group),
        StartTime=until,
        MinSize=nodes,
    )


def _forget_end(aws: Aws, environment: Environment, group: ScalingGroup) -> None:
    which = {"AutoScalingGroupName": group.name, "ScheduledActionName": _action(group)}
    try:
        aws.call("autoscaling", environment.region, "delete_scheduled_action", **which)
    except CallFailed as error:
        if error.code != "ValidationError":  # there is none
            raise


def _action(group: ScalingGroup) -> str:
    return f"spotmpi-give-back-{group.name}"


def _set_least(aws: Aws, environment: Environment, group: ScalingGroup, nodes: int) -> None:
    size: dict[str, int] = {"MinSize": nodes}
    if group.desired < nodes:
        size["DesiredCapacity"] = nodes
    which = {"AutoScalingGroupName": group.name}
    aws.call("autoscaling", environment.region, "update_auto_scaling_group", **which, **size)
