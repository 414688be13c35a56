"""The errors of the CI scripts."""


class CiError(Exception):
    """Something that stops a CI script; the message says what, which value and what to do."""


class NotBuilt(CiError):
    """The stack has no state: it was never built, or was destroyed and forgotten."""
