"""The sizes of an environment's node groups: open, closed (0 nodes), closed by AWS at a scheduled time, or kept warm.

AWS itself ends what is scheduled, whether or not anybody is online.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.eks import require_account
from spotmpi.aws.scaling import SIZES_TAG, ScalingGroup, scaling_groups, schedule_sizes, set_sizes
from spotmpi.core import wording
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments.stack_file import stack_of

_CLOSED = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}
_EXPIRE, _GIVE_BACK = "spotmpi-expire", "spotmpi-give-back"  # what is scheduled with AWS, by name
_SHORTEST = timedelta(minutes=1)
_INTERVAL = 10.0  # seconds between checks
TIMEOUT = 900.0  # seconds for machines to terminate


def open_groups(aws: Aws, environment: Environment, until: datetime | None) -> None:
    """Restore the sizes of closed groups; with *until*, AWS closes all groups at that time.

    SpotmpiError where AWS does not show a group, as it may do for a moment: it would stay open after that time.
    """
    groups = _groups(aws, environment)
    if missing := {group.name for group in environment.node_groups} - {group.group for group in groups}:
        what = f"AWS shows no Auto Scaling group of {', '.join(sorted(missing))} in {environment.cluster}"
        raise SpotmpiError(
            f"{what}: repeat the command; if it fails again, `pulumi up --refresh` sets the tags of the groups"
        )
    for group in groups:
        # The schedule first: an interruption must not leave a group open without one.
        schedule_sizes(aws, environment.region, group, _EXPIRE, until, _CLOSED)
        if group.max == 0:
            # A node group of more than 450 nodes has several Auto Scaling groups.
            low, _, high = group.tags.get(SIZES_TAG, "").partition("-")
            if not (low.isdecimal() and high.isdecimal()):
                remedy = "run `pulumi up` with this version of spotmpi, which sets it"
                raise SpotmpiError(f"Auto Scaling group {group.name} has no tag {SIZES_TAG} with its sizes: {remedy}")
            set_sizes(aws, environment.region, group, {"MinSize": int(low), "MaxSize": int(high)})


def close_groups(aws: Aws, environment: Environment, sleep: Callable[[float], None]) -> int:
    """Scale all groups to 0 and wait; returns the number of machines that remain after the timeout.

    A group that is opened meanwhile, as by `spotmpi up` at the same time, is closed again.
    """
    groups, waited = _groups(aws, environment), 0.0
    while True:
        for group in groups:
            if group.max or not waited:
                set_sizes(aws, environment.region, group, _CLOSED)
        groups = _groups(aws, environment)
        remaining = sum(len(group.instances) for group in groups)
        if waited >= TIMEOUT or not (remaining or any(group.max for group in groups)):
            return remaining
        sleep(_INTERVAL)
        waited += _INTERVAL


def _groups(aws: Aws, environment: Environment) -> list[ScalingGroup]:
    return [group for group in scaling_groups(aws, environment) if group.group]


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
        text = wording.duration(duration.total_seconds())
        raise input_error("--for", text, "give at least 1m: AWS schedules by the minute")
    aws, until = aws or open_account(environment.region), (now or datetime.now(UTC)) + duration
    require_account(aws, environment.cluster_arn)
    groups = [each for each in scaling_groups(aws, environment) if each.group == group]
    # The first part of a group has its name alone, and the others a number behind it.
    groups.sort(key=lambda each: len(each.name))
    if not groups:
        raise SpotmpiError(
            f"AWS has no Auto Scaling group of {group} in {environment.cluster}: run `pulumi up --refresh`"
        )
    if (most := sum(each.max for each in groups)) < nodes:
        remedy = f"`spotmpi up {stack_of(environment.name)}` opens groups that `up --expires` has closed"
        raise SpotmpiError(f"the Auto Scaling group of {group} has max {most} now: {remedy}")
    warm_sizes = _distribute(max(nodes, chosen.min), groups)
    usual_sizes = _distribute(chosen.min, groups)
    for each in groups:
        warm, usual = warm_sizes[each.name], usual_sizes[each.name]
        schedule_sizes(aws, environment.region, each, _GIVE_BACK, until if warm > usual else None, {"MinSize": usual})
        more = {"DesiredCapacity": warm} if each.desired < warm else {}
        set_sizes(aws, environment.region, each, {"MinSize": warm, **more})
    running = sum(len(each.instances) for each in groups)
    return WarmNodes(group, sum(warm_sizes.values()), until if nodes > chosen.min else None, running)


def _distribute(nodes: int, groups: Sequence[ScalingGroup]) -> dict[str, int]:
    """The number of nodes that each Auto Scaling group of a node group keeps; the first is filled first."""
    sizes = {}
    for each in groups:
        sizes[each.name] = min(nodes, each.max)
        nodes -= sizes[each.name]
    return sizes
