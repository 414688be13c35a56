"""How a run ended: the one rule that the agent, followers and readers of run folders share. Pure."""

from __future__ import annotations

from . import outcomes, record

COMPLETED = "Completed"  # condition of a JobSet; the other is Failed
_OF_CAUSE = {outcomes.SUCCEEDED: record.SUCCEEDED, outcomes.STOPPED: record.STOPPED}


def run_outcome(
    recorded: str | None = None,
    cause: str | None = None,
    given_up: bool = False,
    deleted: bool = False,
    condition: str | None = None,
    writer_alive: bool = True,
) -> str | None:
    """Succeeded, failed, stopped or lost, by the best evidence there is; None while the run is active.

    In this order: the last event of its record (*recorded*), the *cause* with which its last attempt ended, that a
    follower has given it up, that its JobSet was *deleted*, a terminal *condition* of its JobSet. A run without any of
    these is lost once no writer of its record is alive.
    """
    if recorded in record.TERMINAL:
        return recorded
    if cause is not None:
        return _OF_CAUSE.get(cause, record.FAILED)
    if given_up:
        return record.FAILED
    if deleted:
        return record.STOPPED
    if condition is not None:
        return record.SUCCEEDED if condition == COMPLETED else record.FAILED
    return None if writer_alive else record.LOST
