"""The errors of the CI scripts."""


class CiError(Exception):
    """An error that ends a CI script; the message has the value and the remedy."""


class NotBuilt(CiError):
    """The stack has no state: it was never built, or was destroyed and removed."""
