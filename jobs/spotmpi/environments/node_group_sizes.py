"""The sizes of an environment's node groups: open, closed (0 nodes), and closed by AWS at a scheduled time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.scaling import SIZES_TAG, ScalingGroup, scaling_groups
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError

_CLOSED = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}
_INTERVAL = 10.0  # seconds between checks
TIMEOUT = 900.0  # seconds for machines to terminate


def open_groups(aws: Aws, environment: Environment, until: datetime | None) -> None:
    """Restore the sizes of closed groups; with *until*, AWS closes all groups at that time.

    SpotmpiError where AWS does not show a group, as it may do for a moment: it would stay open after that time.
    """
    groups = _groups(aws, environment)
    if missing := {group.name for group in environment.node_groups} - {group.group for group in groups}:
        what = f"AWS shows no Auto Scaling group of {', '.join(sorted(missing))} in {environment.cluster}"
        raise SpotmpiError(f"{what}: repeat the command; if it stays so, `pulumi up` sets the tags of the groups")
    for group in groups:
        # The schedule first: an interruption must not leave a group open without one.
        _schedule_close(aws, environment, group, until)
        if group.max == 0:
            _resize(aws, environment, group, _sizes(group))


def _sizes(group: ScalingGroup) -> dict[str, int]:
    """The sizes of an Auto Scaling group in the stack; a node group of more than 450 nodes has several of them."""
    low, _, high = group.tags.get(SIZES_TAG, "").partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        remedy = "run `pulumi up` with this version of spotmpi, which sets it"
        raise SpotmpiError(f"Auto Scaling group {group.name} has no tag {SIZES_TAG} with its sizes: {remedy}")
    return {"MinSize": int(low), "MaxSize": int(high)}


def _schedule_close(aws: Aws, environment: Environment, group: ScalingGroup, until: datetime | None) -> None:
    arguments = {"AutoScalingGroupName": group.name, "ScheduledActionName": f"spotmpi-expire-{group.name}"}
    if until is not None:
        action = {**arguments, **_CLOSED, "StartTime": until}
        aws.call("autoscaling", environment.region, "put_scheduled_update_group_action", **action)
        return
    try:
        aws.call("autoscaling", environment.region, "delete_scheduled_action", **arguments)
    except CallError as error:
        if error.code != "ValidationError":  # no scheduled action exists
            raise


def close_groups(aws: Aws, environment: Environment, sleep: Callable[[float], None]) -> int:
    """Scale all groups to 0 and wait; returns the number of machines that remain after the timeout."""
    for group in _groups(aws, environment):
        _resize(aws, environment, group, _CLOSED)
    waited = 0.0
    while True:
        remaining = sum(len(group.instances) for group in _groups(aws, environment))
        if not remaining or waited >= TIMEOUT:
            return remaining
        sleep(_INTERVAL)
        waited += _INTERVAL


def _groups(aws: Aws, environment: Environment) -> list[ScalingGroup]:
    return [group for group in scaling_groups(aws, environment) if group.group]


def _resize(aws: Aws, environment: Environment, group: ScalingGroup, size: dict[str, int]) -> None:
    arguments = {"AutoScalingGroupName": group.name}
    aws.call("autoscaling", environment.region, "update_auto_scaling_group", **arguments, **size)
