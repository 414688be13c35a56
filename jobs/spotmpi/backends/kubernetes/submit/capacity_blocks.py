"""What a run needs to know of the Capacity Blocks of its node groups: from when to when they are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from spotmpi.agent.placement import utc, waits_for
from spotmpi.agent.plan import Block
from spotmpi.backends.kubernetes.submit.target import no_placement_account
from spotmpi.core.errors import Problem, SpotmpiError
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.placement import Beginning
from spotmpi.spec import roles
from spotmpi.spec.job import JobSpec

if TYPE_CHECKING:
    from spotmpi.core.environment import Environment, NodeGroup

_TERMINATION = 1800.0  # seconds before a block's end at which EC2 begins to end instances (EC2 User Guide)
_MOVE = 60.0  # seconds in which an attempt gets its notice


def problems(spec: JobSpec, environment: Environment | None, now: datetime) -> Iterable[Problem]:
    """Why a run cannot use the Capacity Blocks that it names; none where it names no group in one."""
    groups = _groups(spec, environment)
    if environment is None or not groups:
        return
    field = "capacity.order" if spec.capacity.order else "kubernetes.node_groups"
    if environment.placement_account is None:
        yield no_placement_account(field, environment)
    try:
        blocks = read(spec, environment)
    except SpotmpiError as error:
        names = " and ".join(each.name for each in groups)
        yield Problem(field, names, f"the times of their Capacity Blocks are unknown: {error}")
        return
    for group in groups:
        block = blocks.get(group.name)
        if block is None or block["leave"] <= now.timestamp():
            ended = f"ends at {utc(block['end'])}" if block else "does not exist any more"
            remedy = "set the reservation of the next one in its stack and `spotmpi up`, or leave the group out"
            yield Problem(field, group.name, f"its Capacity Block {group.reservation} {ended}: {remedy}")


def read(spec: JobSpec, environment: Environment | None) -> dict[str, Block]:
    """The Capacity Blocks of the node groups of a run, by group; SpotmpiError where AWS does not tell them."""
    groups = _groups(spec, environment)
    if environment is None or not groups:
        return {}
    from spotmpi.aws.account import open_account
    from spotmpi.aws.capacity_blocks import USABLE, capacity_blocks
    from spotmpi.aws.eks import require_account

    aws = open_account(environment.region)
    require_account(aws, environment.cluster_arn)  # else it would seem that the blocks are not there any more
    bought = capacity_blocks(aws, environment.region)
    blocks = {}
    for group in groups:
        found = bought.get(group.reservation or "")
        if found is not None and found.state in USABLE:
            end = found.end.timestamp()
            blocks[group.name] = Block(
                reservation=found.id,
                start=found.start.timestamp(),
                leave=end - _TERMINATION - spec.checkpoint.grace - _MOVE,
                end=end,
            )
    return blocks


def beginning(target: ClusterTarget, blocks: Mapping[str, Block], now: datetime) -> Beginning:
    """Why a run begins on the first of its node groups: where that is in a block, it may wait for its start."""
    default = Beginning(blocks=blocks)
    first = blocks.get(dict(target.machine).get("node_group", ""))
    if first is None or first["start"] <= now.timestamp():
        return default
    return default._replace(reason=f"{default.reason}; {waits_for(first)}")


def notes(blocks: Mapping[str, Block]) -> list[str]:
    """From when to when the run may be in its blocks."""
    return [
        f"{name}: Capacity Block {each['reservation']} from {utc(each['start'])} to {utc(each['end'])}; the run leaves "
        f"it at {utc(each['leave'])}, with a checkpoint; it is paid, so nodes cost what their disks and addresses do"
        for name, each in blocks.items()
    ]


def _groups(spec: JobSpec, environment: Environment | None) -> tuple[NodeGroup, ...]:
    """The node groups in Capacity Blocks on which the gang of a run may be placed, or might if it fitted them."""
    return roles.nearest(spec, environment.node_groups)[0].blocks if environment else ()
