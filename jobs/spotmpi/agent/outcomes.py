"""How an attempt can end, and why somebody may want it to."""

from __future__ import annotations

from typing import NamedTuple, Tuple

SUCCEEDED = "succeeded"
FAILURE = "failure"  # the program's own fault, or nobody's
INTERRUPTION = "interruption"  # the machine was taken away
NOT_RETRYABLE = "not retryable"  # starting again cannot help
STOPPED = "stopped"  # asked for


class Outcome(NamedTuple):
    """How an attempt ended: one of the causes above, why in words, the agent's exit code, and the nodes that were lost.

    A lost node went without notice; no agent can tell whether its machine was taken away or its memory ran out.
    """

    cause: str
    reason: str | None
    exit_code: int
    lost_nodes: Tuple[int, ...] = ()


class StopRequest(NamedTuple):
    """How an attempt shall end, and whether by way of a checkpoint."""

    outcome: Outcome
    checkpoint_first: bool
