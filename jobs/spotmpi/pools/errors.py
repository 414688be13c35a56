"""What a pool raises besides the errors of the functions that it executes."""

from __future__ import annotations


class PoolError(Exception):
    """An operation on a pool failed; the message says what happened, the value and the remedy."""


class PoolLost(PoolError):
    """The scheduler of a pool, or all of its workers, are lost; the message names the node and the reason."""
