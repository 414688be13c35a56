"""When a run without a deadline goes back from on-demand nodes to a spot group that gave it none before. Pure."""

from __future__ import annotations

from typing import NamedTuple, Optional

from . import placement
from .plan import PlacedCapacity, Placement
from .run_progress import Measured


class Failback(NamedTuple):
    """The group to go back to, and why."""

    group: Placement
    reason: str


def find_failback(
    state: placement.State, capacity: PlacedCapacity, measured: Measured, now: float, share: float = 1.0
) -> Optional[Failback]:
    """The first group of the order to which a gang that has its nodes should go back at the time *now*; or None.

    The gang has this *share* of its largest number of nodes, and is assumed to get as many there.

    The group may give no nodes again, so what is saved has to pay for a start on both groups and for the work since the
    newest checkpoint. A run that has reported no checkpoint, or of which a price is unknown, stays.
    """
    here = placement.placement_of(capacity, state["at"])
    if here["machine"]["market"] != "on-demand" or not measured.iterates or not measured.stored:
        return None
    if not measured.iteration_seconds:
        return None
    start = max(capacity["overhead"], measured.start)
    unsaved = (measured.done - measured.stored) * measured.iteration_seconds
    left = _seconds_left(state, measured, now)
    for name in state["order"][: state["order"].index(state["at"])]:
        there = placement.placement_of(capacity, name)
        if there["machine"]["market"] != "spot" or now < placement.retry_at(state, name, capacity["retry"]):
            continue
        if here["rate"] is None or there["rate"] is None:
            continue
        own, other = share * here["rate"], share * there["rate"]
        saved = (own - other) * left / 3600.0
        paid = ((own + other) * start + own * unsaved) / 3600.0
        if saved > paid:
            text = (
                "back to spot nodes, at a checkpoint: $%.2f instead of $%.2f per hour saves $%.2f, a start costs $%.2f"
            )
            return Failback(there, text % (other, own, saved, paid))
    return None


def _seconds_left(state: placement.State, measured: Measured, now: float) -> float:
    """Seconds to the end of the run; where nobody knows, as many as it has had its nodes for."""
    if measured.total and measured.iteration_seconds:
        return max(0.0, (measured.total - measured.done) * measured.iteration_seconds)
    return now - state["seen"][-1]["t"]
