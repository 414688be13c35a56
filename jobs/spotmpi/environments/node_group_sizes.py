"""How many machines the groups of an environment may have: closed, open, and open until a time that AWS keeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.scaling import SIZES_TAG, ScalingGroup, scaling_groups
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError

_CLOSED = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}
_LOOK = 10.0  # seconds between looks
PATIENCE = 900.0  # seconds in which machines have gone


def open_groups(aws: Aws, environment: Environment, until: datetime | None) -> None:
    """Give each group its sizes back where it was closed; with *until* AWS closes them all at that time."""
    for group in _groups(aws, environment):
        # The end first: whoever is cut off in between must leave nothing open without one.
        _keep_end(aws, environment, group, until)
        if group.max == 0:
            _set(aws, environment, group, _own_sizes(group))


def _own_sizes(group: ScalingGroup) -> dict[str, int]:
    """The sizes that the stack gives an Auto Scaling group; a node group of more than 450 nodes has several of them."""
    low, _, high = group.tags.get(SIZES_TAG, "").partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        remedy = "run `pulumi up` with this version of spotmpi, which writes it"
        raise SpotmpiError(f"Auto Scaling group {group.name} has no tag {SIZES_TAG} with its sizes: {remedy}")
    return {"MinSize": int(low), "MaxSize": int(high)}


def _keep_end(aws: Aws, environment: Environment, group: ScalingGroup, until: datetime | None) -> None:
    which = {"AutoScalingGroupName": group.name, "ScheduledActionName": f"spotmpi-expire-{group.name}"}
    if until is not None:
        arguments = {**which, **_CLOSED, "StartTime": until}
        aws.call("autoscaling", environment.region, "put_scheduled_update_group_action", **arguments)
        return
    try:
        aws.call("autoscaling", environment.region, "delete_scheduled_action", **which)
    except CallFailed as error:
        if error.code != "ValidationError":  # there is none
            raise


def close_groups(aws: Aws, environment: Environment, sleep: Callable[[float], None]) -> int:
    """Take all machines of the groups away and wait for it; how many were still there when patience ended."""
    for group in _groups(aws, environment):
        _set(aws, environment, group, _CLOSED)
    waited = 0.0
    while True:
        left = sum(len(group.instances) for group in _groups(aws, environment))
        if not left or waited >= PATIENCE:
            return left
        sleep(_LOOK)
        waited += _LOOK


def _groups(aws: Aws, environment: Environment) -> list[ScalingGroup]:
    return [group for group in scaling_groups(aws, environment) if group.group]


def _set(aws: Aws, environment: Environment, group: ScalingGroup, size: dict[str, int]) -> None:
    which = {"AutoScalingGroupName": group.name}
    aws.call("autoscaling", environment.region, "update_auto_scaling_group", **which, **size)
