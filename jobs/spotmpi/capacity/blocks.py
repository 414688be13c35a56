"""Capacity Blocks in the plan of a job: nodes that are there for certain from a start to an end, and are paid. Pure.

A job is in a block whenever that gains anything. Other nodes are for the work that no block has time for, so the rest
of the policy sees the job without the work and the time of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spotmpi.capacity.job import Job, hours
from spotmpi.capacity.placement import CAPACITY_BLOCK, DecisionClock, Offer, State


def choose_block(state: State, blocks: Sequence[Offer], clock: DecisionClock) -> tuple[Offer, str] | None:
    """The block to be in now, or to wait for without nodes, and why; None where other nodes are needed before.

    One that has started is left out where it gains nothing, or the rest of the work would be late after it. For nodes
    that work now it has to gain more than the start takes with which the rest of the work goes on after it.
    """
    job, later = state.job, [each for each in blocks if each.start > clock.elapsed]
    for block in blocks:
        is_there = state.placement is not None and block.has(state.placement)
        unsaved, start = (0.0, state.starting) if is_there else (state.unsaved, job.overhead)
        done = _seconds(job, block, clock) - start
        rest = state.work + unsaved - done
        again = job.overhead if state.placement is not None and not is_there and rest > 0 else 0.0
        is_late = rest > 0 and job.on_demand_allowed and block.end - job.deadline + job.overhead + rest > 0
        if block.start <= clock.elapsed and done - again > unsaved and (is_there or not is_late):
            until = f"there for {hours(_seconds(job, block, clock))} and paid"
            return block, f"{block} is {until}; {hours(state.work)} of work left, {hours(max(rest, 0.0))} after it"
    done = sum(max(0.0, _seconds(job, block, clock) - job.overhead) for block in later)
    if not later or state.work + state.unsaved > done:
        return None
    block = min(later, key=lambda each: each.start)
    starts = hours(block.start - clock.elapsed)
    return block, f"{block} starts in {starts}, is paid, and has time for the {hours(state.work)} of work left"


def without_blocks(state: State, blocks: Sequence[Offer], clock: DecisionClock) -> State:
    """*state* without what its job does in blocks that have not started, and without the time of these.

    A start in the block and one after it are time that no work is done in. Nodes in a block are left.
    """
    job, here = state.job, state
    if state.placement is not None and state.placement.market == CAPACITY_BLOCK:
        here = replace(state, placement=None, starting=0.0, unsaved=0.0, work=state.work + state.unsaved)
    ahead = [_seconds(job, block, clock) for block in blocks if block.start > clock.elapsed]
    ahead = [seconds for seconds in ahead if seconds > 2 * job.overhead]
    if not ahead:
        return here
    done = sum(ahead) - 2 * job.overhead * len(ahead)
    work = max(here.work - done, 1.0)
    return replace(
        here, work=work, job=replace(job, deadline=job.deadline - sum(ahead), work=max(job.work - done, work))
    )


def _seconds(job: Job, block: Offer, clock: DecisionClock) -> float:
    """Seconds from now on for which a block is there before the deadline."""
    return max(0.0, min(block.end, job.deadline) - max(block.start, clock.elapsed))
