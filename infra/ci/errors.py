"""The errors of the CI scripts."""

from datetime import datetime


class CiError(Exception):
    """An error that ends a CI script; the message has the value and the remedy."""


class Locked(CiError):
    """Another command holds the stack, or one that was killed did not release it.

    `since` is when the newest lock was taken, if that is known.
    """

    def __init__(self, message: str, since: datetime | None):
        super().__init__(message)
        self.since = since


class NotBuilt(CiError):
    """The stack has no state: it was never built, or was destroyed and removed."""
